"""The way to NVML: the library, whether it can be used, and questions that may have no answer."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

# An optional library: without it nothing is known, as without a driver.
try:
    import pynvml as _pynvml
except ImportError:
    _pynvml = None

pynvml: Any = _pynvml

_NOT_AVAILABLE = (2**64 - 1, 2**32 - 1)
"""What NVML writes where a value would stand that it does not have."""


class NoGpus(Exception):
    """NVML cannot be used; says why, and what would help."""


class NotTold(Exception):
    """NVML does not answer a question; says why."""

    def __init__(self, why: str, *, unsupported: bool, missing: bool = False) -> None:
        super().__init__(why)
        self.unsupported = unsupported
        """By the device or the driver: it will not be told later either."""
        self.missing = missing
        """From the driver."""


def begin() -> str:
    """Load the library; which versions of driver and binding meet.

    Raises:
        NoGpus: it cannot be used.
    """
    if pynvml is None:
        raise NoGpus("GPUs are not watched: pip install 'forebay[gpu]'")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as e:
        raise NoGpus(f"GPUs are not watched, NVML says: {e} (is there an NVIDIA driver?)") from e
    try:
        driver = str(ask("nvmlSystemGetDriverVersion"))
    except NotTold as e:
        driver = f"of an unknown version ({e})"
    return f"driver {driver}, nvidia-ml-py {_binding()}"


def _binding() -> str:
    try:
        return version("nvidia-ml-py")
    except PackageNotFoundError:  # another package's module of this name
        return "of an unknown version"


def end() -> None:
    """Let the library go, after ``begin``."""
    pynvml.nvmlShutdown()


def ask(question: str, *args: Any) -> Any:
    """The answer of a function of NVML.

    Raises:
        NotTold: there is none.
    """
    try:
        return getattr(pynvml, question)(*args)
    except pynvml.NVMLLibraryMismatchError as e:  # of some questions, instead of the next
        raise NotTold("Function Not Found", unsupported=True, missing=True) from e
    except pynvml.NVMLError as e:
        missing = e.value == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
        unsupported = missing or e.value == pynvml.NVML_ERROR_NOT_SUPPORTED
        raise NotTold(str(e), unsupported=unsupported, missing=missing) from e


def number(answer: Any, most: float = float("inf")) -> float | None:
    """A number that NVML told; None if it stands for nothing, or cannot be."""
    if answer is None or answer in _NOT_AVAILABLE or not 0 <= answer <= most:
        return None
    return float(answer)


def whole(answer: Any, most: float = float("inf")) -> int | None:
    """The same for bytes."""
    return None if number(answer, most) is None else int(answer)
