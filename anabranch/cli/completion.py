"""``anabranch completion``: what a shell needs to complete commands and options."""

from __future__ import annotations

from typing import Literal


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

    print(build_app().generate_completion(prog_name="anabranch", shell=shell))
    return 0
