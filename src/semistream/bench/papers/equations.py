"""The papers' equations at the papers' sizes: the printed forms of `semistream.cost`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from semistream.bench.papers.machine import PAGE_BYTES, Machine
from semistream.cost import MODELS, Costs, Frequencies, Plan, UnitCosts, Workload
from semistream.cost.units import COST_NAMES

MB = 1 << 20
ROW_BYTES, STREAM_BYTES, POINTER_BYTES, NODE_BYTES = 120, 20, 4, 12
"""v_R, v_S, and a queue's entry: a pointer, or a node of a doubly linked list."""

THESIS_FUDGE = 8
MESHJOIN_FUDGE = 4.8


@dataclass(frozen=True)
class Setting:
    """Sizes of a paper: M, n_R, f and the skew, in its own units."""

    memory_bytes: float
    rows: float = 2e6
    fudge: float = THESIS_FUDGE
    queue_bytes: int = NODE_BYTES
    skew: float = 1.0

    @property
    def pages(self) -> int:
        """N_R."""
        return max(round(self.rows * ROW_BYTES / PAGE_BYTES), 1)

    @property
    def slot_bytes(self) -> float:
        """s_S = f·v_S + q: a stream row that waits."""
        return self.fudge * STREAM_BYTES + self.queue_bytes

    def waiting(self, buffer_pages: float = 0.0, other_bytes: float = 0.0) -> float:
        """h_S: rows that wait in what buffers and others leave of the memory."""
        return (self.memory_bytes - buffer_pages * PAGE_BYTES - other_bytes) / self.slot_bytes

    @cached_property
    def workload(self) -> Workload:
        """The same for a cost model, which adds the queue's pointer to a slot by itself."""
        return Workload(
            rows=round(self.rows),
            pages=self.pages,
            page_bytes=PAGE_BYTES,
            slot_bytes=self.fudge * STREAM_BYTES,
            cached_bytes=ROW_BYTES,
            output_bytes=ROW_BYTES + STREAM_BYTES,
            frequencies=Frequencies.zipf(round(self.rows), self.skew),
            by_frequency=True,
        )


def unit_costs(machine: Machine) -> UnitCosts:
    """A paper's machine for cost models."""
    given = {
        "read": machine.read,
        "append": machine.append,
        "expire": machine.expire,
        "probe": machine.probe,
        "result": machine.result,
    }
    costs = Costs(**{name: given.get(name, 0.0) for name in COST_NAMES})
    return UnitCosts(((1, costs),), {}, machine.disk)


def mesh_plan(setting: Setting, pages: float) -> Plan:
    """MESHJOIN with a buffer of b pages (Eq. 1)."""
    chunks = max(-(-setting.pages // max(round(pages), 1)), 1)
    return Plan(
        memory_bytes=round(setting.memory_bytes),
        shares={},
        waiting=setting.waiting(pages),
        pages=max(round(pages), 1),
        packets=chunks,
    )


def mesh_c_loop(setting: Setting, pages: float, machine: Machine) -> float:
    """c_loop of MESHJOIN in seconds (Eq. 2)."""
    model, plan = MODELS["meshjoin"], mesh_plan(setting, pages)
    return model.c_loop(setting.workload, plan, unit_costs(machine), printed=True)


def mesh_rate(setting: Setting, pages: float, machine: Machine) -> float:
    """μ of MESHJOIN (Eq. 3 with w of Eq. 3.3)."""
    model, plan = MODELS["meshjoin"], mesh_plan(setting, pages)
    w = model.intake(setting.workload, plan, printed=True)
    return w / mesh_c_loop(setting, pages, machine)


def best_pages(setting: Setting, machine: Machine, values: Iterable[int]) -> int:
    """The buffer with the highest rate."""
    return max(values, key=lambda pages: mesh_rate(setting, pages, machine))


def mesh_memory(setting: Setting, pages: float, rate: float, machine: Machine) -> float:
    """M with which MESHJOIN holds a rate: w = λ·A(b) / (1 - λ·B), then Eq. 1."""
    fixed = replace(setting, memory_bytes=pages * PAGE_BYTES + 1)
    a = machine.disk(pages) + pages * PAGE_BYTES / ROW_BYTES * machine.probe
    w = rate * a / (1 - rate * (machine.row + machine.result))
    return pages * PAGE_BYTES + w * (STREAM_BYTES + setting.pages / pages * fixed.slot_bytes)
