"""State of the program's random number generators (Python, NumPy and torch, if imported) as bytes, and back.

Python and NumPy take 20 and 130 microseconds to return their state, and many programs use neither in a step. So their
objects' memory is compared with its last content, and the state is requested only if the memory has changed.
"""

from __future__ import annotations

import array
import ctypes
import random
import sys

import torch

from taskd import _codec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

REFCOUNT_BYTES = ctypes.sizeof(ctypes.c_ssize_t)  # at the start of every object; not compared
NUMPY_STATE_BYTES = 2500  # of the Mersenne twister: 624 words and a position


class Asked:
    """The last state that a generator returned, and the mark by which a change of the state is detected."""

    def __init__(self, mark: Any, ask: Any) -> None:
        self.mark, self.ask = mark, ask
        self.marked = self.asked = None

    def __call__(self):
        try:
            marked = self.mark()
        except Exception:
            return self.ask()  # another version of Python, or another generator
        if self.asked is None or marked != self.marked:
            self.marked, self.asked = marked, self.ask()
        return self.asked


def memory_of(what: Any) -> bytes:
    return ctypes.string_at(id(what) + REFCOUNT_BYTES, type(what).__basicsize__ - REFCOUNT_BYTES)


def mark_of_python() -> Any:
    return memory_of(random._inst), random._inst.gauss_next  # pyright: ignore[reportAttributeAccessIssue]


def ask_python() -> tuple[Any, bytes, Any]:
    version, words, gauss = random.getstate()
    return version, array.array("I", words).tobytes(), gauss


def mark_of_numpy() -> tuple[bytes, bytes]:
    rand = sys.modules["numpy"].random.mtrand._rand
    generator = rand._bit_generator
    if type(generator).__name__ != "MT19937":
        raise ValueError
    return memory_of(rand), ctypes.string_at(generator.ctypes.state_address, NUMPY_STATE_BYTES)


def ask_numpy() -> bytes:
    return _codec.encode(sys.modules["numpy"].random.get_state(legacy=False))


of_python, of_numpy = Asked(mark_of_python, ask_python), Asked(mark_of_numpy, ask_numpy)


def state() -> bytes:
    numpy = sys.modules.get("numpy")
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    return _codec.encode(
        (
            of_python(),
            of_numpy() if numpy and hasattr(numpy, "random") else None,
            torch.get_rng_state().numpy().tobytes(),
            cuda and [one.numpy().tobytes() for one in cuda],
        )
    )


def restore(data: Any) -> None:
    python, numpy, of_torch, of_cuda = _codec.decode(data)
    give_python(python)
    give_numpy(numpy)
    torch.set_rng_state(tensor(of_torch))
    if of_cuda is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([tensor(one) for one in of_cuda])


def give_python(state: Any) -> None:
    words = array.array("I")
    words.frombytes(state[1])
    random.setstate((state[0], tuple(words), state[2]))


def give_numpy(state: Any) -> None:
    if state is not None:
        import numpy.random as numpy_random

        numpy_random.set_state(_codec.decode(state))


def tensor(data: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
