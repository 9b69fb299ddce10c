"""``anabranch completion``: scripts with which a shell completes commands and options."""

from __future__ import annotations

from typing import Literal

from anabranch.cli.own_command import NAME


def completion(shell: Literal["bash", "zsh", "fish"]) -> int:
    """Print a script that completes commands and options in a shell.

    bash: source <(anabranch completion bash), in ~/.bashrc. zsh: anabranch completion zsh > ~/.zfunc/_anabranch, with
    fpath=(~/.zfunc $fpath) before compinit. fish: anabranch completion fish >
    ~/.config/fish/completions/anabranch.fish.

    Parameters
    ----------
    shell
        bash, zsh or fish.
    """
    from anabranch.cli.main import build_app

    script = build_app().generate_completion(prog_name=NAME, shell=shell)
    if shell == "zsh":
        # zsh calls only the function that has the name of its file in fpath.
        script = script.replace(f"_cyclopts_{NAME}", f"_{NAME}")
    print(script)
    return 0
