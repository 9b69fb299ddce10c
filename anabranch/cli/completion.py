"""``anabranch completion``: scripts with which a shell completes commands and options."""

from __future__ import annotations

from typing import Literal

from anabranch.cli.own_command import NAME

_WHEN_SOURCED = f"""
if [[ ${{funcstack[1]}} == _{NAME} ]]; then _{NAME} "$@"; else compdef _{NAME} {NAME}; fi
"""
"""zsh runs a file in fpath as the function with the file's name. A sourced script has to register the function."""


def completion(shell: Literal["bash", "zsh", "fish"]) -> int:
    """Print a script that completes commands and options in a shell.

    bash: source <(anabranch completion bash), in ~/.bashrc. zsh: source <(anabranch completion zsh), in ~/.zshrc after
    compinit; or anabranch completion zsh > ~/.zfunc/_anabranch, with fpath=(~/.zfunc $fpath) before compinit. fish:
    anabranch completion fish > ~/.config/fish/completions/anabranch.fish.

    Parameters
    ----------
    shell
        bash, zsh or fish.
    """
    from anabranch.cli.main import build_app

    script = build_app().generate_completion(prog_name=NAME, shell=shell)
    if shell == "zsh":
        # zsh calls only the function with the name of the file in fpath.
        script = script.replace(f"_cyclopts_{NAME}", f"_{NAME}") + _WHEN_SOURCED
    print(script)
    return 0
