"""Circuits as text: netlists for ngspice, model cards, and reading a user's own netlist."""

from analog.netlist.check import check_netlist
from analog.netlist.conversion import circuit_from_netlist
from analog.netlist.drive import Hold, Step, Sweep
from analog.netlist.harmless import check_harmless
from analog.netlist.model_cards import read_model_card, write_model_card
from analog.netlist.op_amp import SaturatingOpAmp, UserOpAmp
from analog.netlist.reader import UserNetlist, read_netlist
from analog.netlist.settings import Settings
from analog.netlist.writer import Netlist, write_netlist

__all__ = [
    "Hold",
    "Netlist",
    "SaturatingOpAmp",
    "Settings",
    "Step",
    "Sweep",
    "UserNetlist",
    "UserOpAmp",
    "check_harmless",
    "check_netlist",
    "circuit_from_netlist",
    "read_model_card",
    "read_netlist",
    "write_model_card",
    "write_netlist",
]
