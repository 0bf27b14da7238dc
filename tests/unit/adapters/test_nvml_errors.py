"""What an error of NVML tells the person who reads it in a condition."""

import pytest

from gpupolicy.adapters.nvml.errors import Fault, NvmlError


@pytest.mark.parametrize(
    ("code", "fault", "remedy"),
    [
        pytest.param(9, Fault.UNAVAILABLE, "load the NVIDIA kernel driver", id="no-driver"),
        pytest.param(15, Fault.LOST, "reset the card or reboot the node; one that is lost again", id="lost"),
        pytest.param(16, Fault.LOST, "reset the card or reboot the node", id="reset-required"),
    ],
)
def test_an_error_that_somebody_can_mend_says_how(code: int, fault: Fault, remedy: str) -> None:
    error = NvmlError("nvmlInit", code, "what NVML says")

    assert error.fault is fault
    assert str(error).startswith(f"nvmlInit: what NVML says (NVML code {code}): {remedy}")
