"""Rules of the pages behind the guest's memory: huge pages, locking, sharing, ballooning."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.domain.guest import Pages
from hosttune.model import sysfs
from hosttune.model.values import CpuSet, format_size, parse_cpus
from hosttune.rules.engine import Finding, Need
from hosttune.rules.lint.guest_on_host import GuestOnHost
from hosttune.rules.lint.memory import bound_bytes, page_size, paged_bytes
from hosttune.rules.lint.rule import ADVICE, ERROR, INFO, LIBVIRT, NODES, QEMU_VERSION, TUNING, WARN, rule, unknown

_BACKING = "/domain/memoryBacking"
_HUGE = f"{_BACKING}/hugepages"
_NODES = sysfs.NODES
_SOURCE = "libvirt formatdomain, Memory Backing"
_VFIO_RESERVE = 1 << 30  # libvirt's own allowance for MMIO, in addition to the guest's memory
_MOUNTS = Need[GuestOnHost](
    "the mounts of huge pages are unknown (/proc/mounts)",
    lambda scene: scene.host.memory_settings is not None and scene.host.memory_settings.hugetlbfs is not None,
)


_REFUSES = (9, 1)  # QEMU: backends/hostmem: Report error when memory size is unaligned
_SMALL_BYTES = 4096  # libvirt takes the size of ordinary pages as a size of "huge" ones, too


def _pages(scene: GuestOnHost) -> tuple[Pages, ...]:
    """Return the huge pages that are written, without those of the ordinary size."""
    return tuple(p for p in scene.guest.backing.pages or () if p.size_bytes is None or p.size_bytes > _SMALL_BYTES)


def _offered(scene: GuestOnHost) -> set[int]:
    """Return the sizes of huge pages that this host has."""
    return {page.size_bytes for node in scene.host.numa_nodes for page in node.hugepages or ()}


def _write(scene: GuestOnHost, form: str) -> str:
    """Return the advice to write the largest pages of this host, up to 1 GiB, of which each cell is a whole number."""
    cells, sizes = scene.guest.cells or (scene.guest,), _offered(scene) or {2 << 20, 1 << 30}
    fitting = [s for s in sizes if s <= 1 << 30 and not any((cell.memory_bytes or 0) % s for cell in cells)]
    number, unit = format_size(max(fitting, default=min(sizes))).split()
    page = f"<page size='{number}' unit='{unit}'" + (" nodeset='…'/>" if scene.guest.cells else "/>")
    return f"write {form.format(page)}" + ("" if fitting else ", and round the memory up to whole pages")


def _has_pages(scene: GuestOnHost) -> bool:
    return bool(_pages(scene))


@rule(
    "huge-pages",
    TUNING,
    _BACKING,
    right="the memory of a guest with host devices or pinned vCPUs has huge pages",
    why="the IOMMU and the guest walk 4 KiB pages, and starting takes longer",
    source=f"{_SOURCE}; Linux admin-guide/mm/hugetlbpage",
    remedy="write <hugepages> with a <page> for all cells",
    applies=lambda scene: not scene.confidential and (bool(scene.given) or scene.all_pinned or _has_pages(scene)),
)
def huge_pages(scene: GuestOnHost) -> Iterator[Finding]:
    """Find GPUs on ordinary pages, and cells that the huge pages leave out."""
    pages = _pages(scene)
    if not pages:
        text = "no huge pages: the IOMMU and the guest walk 4 KiB pages, and starting takes longer"
        yield Finding(text, _BACKING, remedy=_write(scene, "<hugepages>{}</hugepages> for all cells"))
        return
    covered = CpuSet().union(*(parse_cpus(page.cells) for page in pages))
    left = CpuSet(cell.id for cell in scene.guest.cells) - covered
    if left and all(page.cells is not None for page in pages):
        text = f"no huge pages for cells {CpuSet(left)}: they get ordinary ones"
        yield Finding(text, _HUGE, remedy=f"add cells {CpuSet(left)} to the nodeset of a <page>")


@rule(
    "page-size",
    ERROR,
    _HUGE,
    right="the size of the huge pages is written, and the host has that size",
    why="the guest does not start; a size that is not written is the host's default, which a kernel argument changes",
    source=f"{_SOURCE}, hugepages; {_NODES}/node*/hugepages",
    remedy="write a size that this host has",
    applies=_has_pages,
)
def page_sizes(scene: GuestOnHost) -> Iterator[Finding]:
    """Find page sizes that the host does not have, and pages without a size."""
    pages = _pages(scene)
    offered = _offered(scene)
    if any(page.size_bytes is None for page in pages):
        settings = scene.host.memory_settings
        now = settings.default_hugepage_bytes if settings else None
        text = f"huge pages without a size: it is the host's default, {format_size(now) if now else 'unknown here'}"
        yield Finding(text, _HUGE, TUNING, remedy=_write(scene, "the size: {}"))
    if not offered:
        yield unknown("which sizes of huge pages the host has is unknown", _HUGE)
    for page in pages:
        if page.size_bytes and offered and page.size_bytes not in offered:
            sizes = " and ".join(format_size(size) for size in sorted(offered))
            text = f"pages of {format_size(page.size_bytes)}: this host has {sizes} ({_NODES}/node*/hugepages)"
            yield Finding(text, _HUGE, remedy=_write(scene, "{}"))


@rule(
    "page-alignment",
    ERROR,
    "/domain/memory",
    right="the memory of each cell is a whole number of its pages",
    why="the guest does not start",
    source=f"{_SOURCE}, hugepages; QEMU backends/hostmem.c",
    remedy="round the memory of the cell to its page size",
    applies=_has_pages,
)
def page_alignment(scene: GuestOnHost) -> Iterator[Finding]:
    """Find cells, or a guest without cells, whose memory ends within a page."""
    for cell in scene.guest.cells:
        size = page_size(scene, cell.id)
        if size and cell.memory_bytes is not None and cell.memory_bytes % size:
            text = f"cell {cell.id}: {cell.memory_bytes} bytes is not a whole number of {format_size(size)} pages"
            yield _unaligned(scene, text, "/domain/cpu/numa/cell", cell.memory_bytes, size)
    total = scene.guest.memory_bytes
    size = page_size(scene, None)
    if not scene.guest.cells and size and total is not None and total % size:
        text = f"{total} bytes is not a whole number of {format_size(size)} pages"
        yield _unaligned(scene, text, "/domain/memory", total, size)


def _unaligned(scene: GuestOnHost, text: str, where: str, memory: int, page: int) -> Finding:
    """Judge memory that ends within a page. Before 9.1 QEMU takes a whole page of a hugetlbfs, but of no memfd."""
    file_backed = not scene.written("memoryBacking/source[@type='memfd']") and not scene.guest.policies  # no mbind
    rounds = file_backed and (scene.facts.qemu or _REFUSES) < _REFUSES
    more = ": this QEMU takes a whole last page, QEMU 9.1 refuses" if rounds else ""
    remedy = f"write {-(-memory // page) * page // 1024} KiB of memory"
    return Finding(f"{text}{more}", where, WARN if rounds else "", remedy=remedy)


@rule(
    "pages-reserved",
    INFO,
    _HUGE,
    right="the host has reserved the huge pages",
    why="the guest does not start until they are there",
    source="Linux admin-guide/mm/hugetlbpage",
    remedy="reserve them at boot, or let hosttune plan and apply do it",
    needs=(NODES,),
    applies=_has_pages,
)
def pages_reserved(scene: GuestOnHost) -> Iterator[Finding]:
    """Find pools that are smaller than what is bound to their node; of memory that is not bound, all pools together."""
    for page_bytes, needed in () if bound_bytes(scene) else paged_bytes(scene).items():
        every = (page for node in scene.host.numa_nodes for page in node.hugepages or ())
        pools = [page.total for page in every if page.size_bytes == page_bytes]
        total = sum(pool or 0 for pool in pools)
        if pools and None not in pools and total * page_bytes < needed:
            pages = f"{-(-needed // page_bytes)} pages of {format_size(page_bytes)}"
            text = f"needs {pages}, and {total} are reserved on all nodes together ({_NODES}/node*/hugepages)"
            yield Finding(text, _HUGE, remedy=f"reserve {pages} at boot, or let hosttune plan and apply do it")
    known = {node.id: node for node in scene.host.numa_nodes}
    for node, sizes in sorted(bound_bytes(scene).items()):
        numa_node = known.get(node)
        for size, needed in sizes.items():
            pool = next((page for page in (numa_node and numa_node.hugepages) or () if page.size_bytes == size), None)
            if size is None or pool is None or pool.total is None or pool.total * size >= needed:
                continue
            path = f"{_NODES}/node{node}/hugepages/hugepages-{size // 1024}kB/nr_hugepages"
            text = (
                f"needs {needed // size} pages of {format_size(size)} on node {node}, where {pool.total} are reserved "
                f"({path}): reserve them before the start"
            )
            remedy = f"reserve {needed // size} of them at boot, or let hosttune plan and apply do it"
            yield Finding(text, _HUGE, remedy=remedy)


@rule(
    "hugetlbfs-mount",
    INFO,
    _HUGE,
    right="libvirt knows a hugetlbfs of the page size",
    why="libvirt starts no guest without it (Unable to find any usable hugetlbfs mount)",
    source="libvirt src/qemu/qemu_conf.c (virQEMUDriverConfig, hugetlbfs)",
    remedy="mount one and restart libvirt's daemon, or let hosttune plan and apply do it",
    needs=(_MOUNTS,),
    applies=_has_pages,
)
def hugetlbfs_mount(scene: GuestOnHost) -> Iterator[Finding]:
    """Find page sizes without a mount, or with one that libvirt's daemon has not found."""
    settings = scene.host.memory_settings
    mounts = (settings.hugetlbfs if settings else None) or ()
    sizes = {page.size_bytes for page in _pages(scene) if page.size_bytes}
    for size in sorted(sizes & (_offered(scene) or sizes)):
        alike = [mount for mount in mounts if mount.size_bytes == size]
        if not alike:
            yield Finding(f"no hugetlbfs of {format_size(size)} pages is mounted", _HUGE)
        elif all(mount.libvirt is False for mount in alike):
            text = f"libvirt has not found the hugetlbfs at {alike[0].path}: it was mounted after its start"
            yield Finding(text, _HUGE, remedy="restart libvirt's daemon: it looks for mounts when it starts")


@rule(
    "memory-locking",
    ERROR,
    f"{_BACKING}/locked",
    right="the limit of locked memory is written if memory is locked, and leaves room for VFIO",
    why="without one it may lock all memory; with one too small it does not start",
    source="libvirt formatdomain, locked and hard_limit; libvirt qemu_domain.c (qemuDomainGetMemLockLimitBytes)",
    remedy="take <locked/> out: VFIO locks the memory anyway, and libvirt raises the limit by itself",
    applies=lambda scene: not scene.confidential,
)
def memory_locking(scene: GuestOnHost) -> Iterator[Finding]:
    """Find unlimited locking, and limits below what VFIO locks."""
    guest = scene.guest
    if guest.backing.locked and guest.hard_limit_bytes is None:
        text, remedy = "<locked/> without a hard_limit: the guest may lock all memory of the host", None
        if not scene.given and guest.memory_bytes is not None:  # libvirt raises no limit by itself
            size = -(-(guest.memory_bytes + _VFIO_RESERVE) // 1024)
            remedy = f"write <hard_limit unit='KiB'>{size}</hard_limit> in <memtune>"
        yield Finding(text, f"{_BACKING}/locked", WARN, remedy=remedy)
    limit = guest.hard_limit_bytes
    if scene.passed and limit is not None and guest.memory_bytes is not None:
        least = guest.memory_bytes + _VFIO_RESERVE
        if limit < least:
            text = f"hard_limit {format_size(limit)} is below memory + 1 GiB ({format_size(least)}) that VFIO locks"
            remedy = f"write <hard_limit unit='KiB'>{-(-least // 1024)}</hard_limit>, or take it out: libvirt sets one"
            yield Finding(text, "/domain/memtune/hard_limit", remedy=remedy)


@rule(
    "memory-balloon",
    ADVICE,
    "/domain/devices/memballoon",
    right="a guest whose memory is pinned by passed devices, or huge, has no balloon",
    why="the balloon gives no memory back to the host",
    source="Linux Documentation/driver-api/vfio; libvirt formatdomain, memballoon",
    remedy="write <memballoon model='none'/>",
    applies=lambda scene: not scene.confidential and (bool(scene.guest.hostdevs) or _has_pages(scene)),
)
def memory_balloon(scene: GuestOnHost) -> Iterator[Finding]:
    """Find a balloon, also the one that libvirt adds."""
    balloon = scene.guest.balloon
    if balloon != "none":
        model = f"model {balloon}" if balloon else "libvirt adds one where none is written"
        beside = (
            "passed devices: VFIO pins all memory" if scene.guest.hostdevs else "huge pages: they are reserved anyway"
        )
        text = f"a memory balloon ({model}) beside {beside}, a balloon cannot give it back"
        yield Finding(text, "/domain/devices/memballoon")


@rule(
    "memory-merging",
    ADVICE,
    f"{_BACKING}/nosharepages",
    right="memory that is pinned or huge is kept out of page merging (KSM)",
    why="QEMU offers it to KSM, which scans it and can free nothing",
    source=f"{_SOURCE}, nosharepages; Linux admin-guide/mm/ksm",
    remedy="write <nosharepages/> in <memoryBacking>",
    applies=lambda scene: not scene.confidential and (bool(scene.given) or _has_pages(scene)),
)
def memory_merging(scene: GuestOnHost) -> Iterator[Finding]:
    """Find memory that is offered to KSM without use."""
    if not scene.guest.backing.nosharepages:
        yield Finding("no <nosharepages/>: memory that cannot be merged is offered to KSM", f"{_BACKING}/nosharepages")


@rule(
    "memory-allocation",
    ADVICE,
    f"{_BACKING}/allocation",
    right="huge pages are allocated when the guest starts",
    why="a shortage of pages kills the running guest (SIGBUS) instead of stopping its start",
    source=f"{_SOURCE}, allocation; Linux admin-guide/mm/hugetlbpage",
    remedy="write <allocation mode='immediate'/> in <memoryBacking>, or leave the element out",
    applies=lambda scene: not scene.confidential and _has_pages(scene),
)
def memory_allocation(scene: GuestOnHost) -> Iterator[Finding]:
    """Find huge pages that are allocated on first use; without the element libvirt allocates them at the start."""
    if scene.guest.backing.allocation == "ondemand":
        text = "allocation ondemand: pages are taken on first use, and a shortage shows while it runs"
        yield Finding(text, f"{_BACKING}/allocation")


@rule(
    "confidential-memory",
    INFO,
    "/domain/launchSecurity",
    right="the memory of a confidential guest is judged by what holds for it",
    why="its memory is pinned and encrypted (SEV), or guest_memfd (SNP, TDX)",
    source="Linux Documentation/virt/kvm/api (KVM_CREATE_GUEST_MEMFD); QEMU docs/system/i386/amd-memory-encryption",
    remedy="no advice for ordinary guests: it would take the memory a second time",
    applies=lambda scene: scene.confidential,
)
def confidential_memory(scene: GuestOnHost) -> Iterator[Finding]:
    """Say that the rules above are not asked about a confidential guest."""
    yield unknown("a confidential guest: rules of memory are not judged", "/domain/launchSecurity")


_PROTECTED_SINCE = {"sev": (4, 5), "sev-snp": (10, 5), "tdx": (11, 6)}  # libvirt formatdomain, NEWS


@rule(
    "confidential-type",
    ERROR,
    "/domain/launchSecurity",
    right="libvirt knows the protection that the guest asks for",
    why="libvirt refuses the definition",
    source="libvirt NEWS 10.5.0 (sev-snp), 11.6.0 (tdx)",
    remedy="install that libvirt or newer",
    needs=(LIBVIRT,),
    applies=lambda scene: any(scene.written(f"launchSecurity[@type='{kind}']") for kind in _PROTECTED_SINCE),
)
def confidential_type(scene: GuestOnHost) -> Iterator[Finding]:
    """Find protected guests of a libvirt that has no such protection, unless its builder has added it."""
    for kind, since in _PROTECTED_SINCE.items():
        if scene.written(f"launchSecurity[@type='{kind}']") and (scene.facts.libvirt or since) < since:
            text = f"whether this libvirt, older than {'.'.join(map(str, since))}, has {kind} by patches"
            yield unknown(text, "/domain/launchSecurity")


_SNP, _SNP_VFIO = (9, 1), (9, 2)


@rule(
    "confidential-devices",
    ERROR,
    "/domain/launchSecurity",
    right="an SNP guest with passed devices has a QEMU that starts it",
    why="QEMU refuses: Cannot set discarding of RAM broken: Device or resource busy",
    source="QEMU ChangeLog/9.2, VFIO; kubevirt/kubevirt issue 16407",
    remedy="install QEMU 9.2 or newer, or take the devices out",
    needs=(QEMU_VERSION,),
    applies=lambda scene: scene.written("launchSecurity[@type='sev-snp']") and bool(scene.taken or scene.given),
)
def confidential_devices(scene: GuestOnHost) -> Iterator[Finding]:
    """Find the QEMU that has SNP and cannot pass devices to it; an older one has SNP only as its builder made it."""
    said = scene.host.virtualization.qemu_version if scene.host.virtualization else None
    version = scene.facts.qemu or _SNP_VFIO
    if version < _SNP:
        yield unknown(f"whether QEMU {said}, which has SNP only by patches, passes devices", "/domain/launchSecurity")
    elif version < _SNP_VFIO:
        yield Finding(f"QEMU {said} cannot pass devices to an SNP guest: 9.2 can", "/domain/launchSecurity")
