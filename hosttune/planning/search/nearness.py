"""How near counted NICs and drives are to a guest's GPUs on the PCIe tree: how many bridges they share. Pure."""

from __future__ import annotations

from hosttune.inventory.devices import Catalogue
from hosttune.planning.request.nearest import dealt, shared_bridges
from hosttune.planning.request.resource_pool import ResourcePool
from hosttune.planning.search.selections import Picks

Gpus = tuple[str, ...]
Pair = tuple[str, str | None]  # a device and a GPU


class Nearness:
    """The nearness of devices to GPUs, for picks of a resource pool. What was counted once is kept."""

    def __init__(self, catalogue: Catalogue, resource_pool: ResourcePool) -> None:
        self._catalogue, self._stock = catalogue, resource_pool
        self._shared: dict[tuple[int, Gpus], dict[Pair, int]] = {}
        self._nearest: dict[tuple[int, Gpus], list[int]] = {}

    def exact(self, picks: Picks, gpus: Gpus) -> int:
        """Return the bridges shared if each device is for one GPU, and no GPU has two before every other has one."""
        left: dict[int, int] = {}
        kinds: dict[str, int] = {}
        near: dict[Pair, int] = {}
        for index, count in picks:
            left[index] = count
            kinds |= {device: index for bundle in self._stock.kind(index).bundles for device in bundle}
            near |= self._bridges(index, gpus)

        def take(device: str) -> bool:
            left[kinds[device]] -= 1
            return left[kinds[device]] >= 0

        ranked = sorted(near, key=lambda pair: -near[pair])
        return sum(near[pair] for pair in dealt(ranked, sum(count for _, count in picks), take))

    def most(self, picks: Picks, gpus: Gpus) -> int:
        """Return a bound on that, which costs less: each device counts for the GPU that is nearest to it."""
        found = 0
        for index, count in picks:
            key = index, gpus
            if key not in self._nearest:
                nearest: dict[str, int] = {}
                for (device, _), bridges in self._bridges(index, gpus).items():
                    nearest[device] = max(bridges, nearest.get(device, 0))
                self._nearest[key] = sorted(nearest.values(), reverse=True)
            found += sum(self._nearest[key][:count])
        return found

    def _bridges(self, index: int, gpus: Gpus) -> dict[Pair, int]:
        """Return how many bridges each device of a kind shares with each GPU."""
        key = index, gpus
        if key not in self._shared:
            devices = [address for bundle in self._stock.kind(index).bundles for address in bundle]
            pairs = ((device, gpu) for device in devices for gpu in gpus)
            self._shared[key] = {(device, gpu): shared_bridges(self._catalogue, device, gpu) for device, gpu in pairs}
        return self._shared[key]
