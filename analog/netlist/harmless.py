"""What a netlist may not say before it is handed to ngspice: no commands, no other files, no other programs.

ngspice is a shell with a simulator in it: it runs the commands of a ``.control`` block (``shell`` among them) as soon
as a netlist is loaded, those of included files too, and XSPICE elements read files and start programs. A netlist or an
op-amp of somebody else's, in a file or in a bundle, must not be able to. Cards are allowed by name, so that what a
later ngspice adds is refused until somebody has looked at it.
"""

from __future__ import annotations

from deploy.errors import InputError

__all__ = ["check_harmless"]

_ALLOWED = frozenset({
    ".ac", ".dc", ".disto", ".else", ".elseif", ".end", ".endif", ".ends", ".four", ".func", ".global", ".ic",
    ".if", ".meas", ".measure", ".model", ".nodeset", ".noise", ".op", ".opt", ".option", ".options", ".param",
    ".plot", ".print", ".probe", ".pz", ".save", ".sens", ".subckt", ".temp", ".tf", ".title", ".tran", ".width",
})  # fmt: skip
_REMEDIES = {
    ".inc": "put the text of the file in its place",
    ".lib": "put the text of the file in its place",
    ".con": "leave the block out: the analysis is chosen here",
    ".end": "leave the block out: the analysis is chosen here",
}


def check_harmless(text: str) -> None:
    """Refuse a netlist that could run commands, open files or start programs.

    Every line is looked at, the title and what follows ``.end`` included.

    Raises
    ------
    InputError : names the line.

    Examples
    --------
    >>> check_harmless("divider\\nV1 in 0 1\\nR1 in 0 1k\\n.control\\nshell rm mine\\n.endc\\n.end")
    Traceback (most recent call last):
        ...
    deploy.errors.InputError: line 4: .control is not handed to ngspice; leave the block out: the analysis is chosen here
    """
    for number, row in enumerate(text.splitlines(), 1):
        words = row.lower().split(maxsplit=1)
        word = words[0][:40] if words else ""
        if word.startswith(".") and word.partition("(")[0] not in _ALLOWED:
            remedy = _REMEDIES.get(word[:4], "leave it out")
            raise InputError(f"{word} is not handed to ngspice", place=f"line {number}", remedy=remedy)
        if word.startswith("*#"):
            raise InputError(
                "*# begins a command, which is not handed to ngspice",
                place=f"line {number}",
                remedy="put a space after the * if it is a comment",
            )
        if word.startswith("a") and number > 1:
            raise InputError(
                f"{word} is an XSPICE element, which can open files and start programs",
                place=f"line {number}",
                remedy="write it with elements of SPICE",
            )
