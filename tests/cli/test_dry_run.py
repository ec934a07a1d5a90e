"""A dry run refuses what the conversion would refuse before its work, with the same words."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.cli.main import run
from deploy.demo import CALIBRATION, HELD_OUT, MODEL


@pytest.mark.parametrize("dry", [[], ["--dry-run"]], ids=["convert", "dry run"])
@pytest.mark.parametrize(
    ("setting", "code", "said"),
    [
        ("ckks.domain=1:0", 2, "ckks.domain: the lower end exceeds the upper end"),
        ("ckks.domain=0:0.5", 4, "calibration row 0, input 3 is 0.8125, outside the stated domain 0:0.5"),
        ("ckks.domain=-1e10:1e10", 4, "no chain in the 128-bit table carries logits up to"),
        ("ckks.domain=-1e60:1e60", 4, "the inputs may reach 1e+60, ciphertexts hold values up to 2**100"),
        ("ckks.domain=-1e308:1e308", 4, "the inputs may reach 1e+308"),
        ("ckks.selection_rows=2000:3000", 2, "selection_rows=2000:3000 names none of 1437 calibration rows"),
        ("circuit.diode=1N4149", 2, "did you mean 1N4148?"),
        ("circuit.diode=.model X D(IS=-1)", 4, "saturation_A = -1.0 must exceed 0"),
        ("circuit.op_amp=fast", 4, "no .subckt line in the op-amp's text"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, code: int, said: str, dry: list[str]
) -> None:
    target = setting.partition(".")[0]
    arguments = ["convert", str(MODEL), "--calibration", CALIBRATION, "--target", target, "--set", setting]
    assert run([*arguments, "-o", str(tmp_path / "new"), *dry]) == code
    found = capsys.readouterr().err
    assert said in found
    assert "before the work" not in found
    assert not list(tmp_path.iterdir())


def test_a_dry_run_of_what_can_be_used_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["convert", str(MODEL), "--calibration", CALIBRATION, "--held-out", HELD_OUT, "--input-box", "0:1"]
    assert run([*arguments, "--target", "ckks,circuit", "--set", "ckks.domain=0:1", "--dry-run"]) == 0
    assert "before the work" in capsys.readouterr().err
