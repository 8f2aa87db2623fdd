"""Emulator threads of guests planned together are off the vCPUs of all, those that found a place last too."""

from __future__ import annotations

from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.values import parse_cpus, to_json
from hosttune.planning import plan

CORES = {2: (2, 5, 8, 11), 3: (3, 6, 9), 4: (4, 7, 10)}  # of unequal width: the lowest two CPUs are off


def test_nobody_elses_emulator_runs_on_a_vcpu() -> None:
    cpus = [
        {"id": cpu, "core": core, "package": 0, "die": 0, "numa_node": 0, "llc": core, "online": True}
        for core, members in CORES.items()
        for cpu in members
    ]
    node = {"id": 0, "cpus": "2-11", "memory_bytes": 4 << 30, "distances": {"0": 10}}
    host = {"schema": "hosttune.host/v1", "arch": "x86_64", "cpus": sorted(cpus, key=lambda c: str(c["id"]).zfill(3))}
    host |= {"numa_nodes": [node], "guests": []}
    guests = [{"name": f"g{n}", "gpus": 0, "vcpus": vcpus, "memory": "1GiB"} for n, vcpus in enumerate((5, 1))]
    intent = {"version": 1, "reserve": {"cores_per_node": 0}, "guests": guests}
    found = plan(Host.from_json(to_json(host)), Intent.from_json(to_json(intent)))
    assert [guest.name for guest in found.guests] == ["g0", "g1"]
    pins = {cpu for guest in found.guests for pin in guest.vcpu_pins for cpu in parse_cpus(pin.cpus)}
    for guest in found.guests:
        assert pins.isdisjoint(parse_cpus(guest.emulator_cpus)), guest.name
        assert guest.iothread_cpus == (guest.emulator_cpus,)
