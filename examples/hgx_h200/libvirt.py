"""What libvirt of Ubuntu 24.04 (libvirt 10.0.0, QEMU 8.2.2) answers on the example host: no guest is defined."""

from __future__ import annotations

from hgx_h200.tree import Tree

VERSION = """Compiled against library: libvirt 10.0.0
Using library: libvirt 10.0.0
Using API: QEMU 10.0.0
Running hypervisor: QEMU 8.2.2
Running against daemon: 10.0.0
"""

LIST = """ Id   Name   State
--------------------

"""

# Shortened to the elements that concern a q35 guest with passed devices.
CAPABILITIES = """<domainCapabilities>
  <path>/usr/bin/qemu-system-x86_64</path>
  <domain>kvm</domain>
  <machine>pc-q35-8.2</machine>
  <arch>x86_64</arch>
  <vcpu max='1024'/>
  <iothreads supported='yes'/>
  <os supported='yes'>
    <enum name='firmware'>
      <value>bios</value>
      <value>efi</value>
    </enum>
    <loader supported='yes'>
      <value>/usr/share/OVMF/OVMF_CODE_4M.fd</value>
      <value>/usr/share/OVMF/OVMF_CODE_4M.ms.fd</value>
      <enum name='type'>
        <value>rom</value>
        <value>pflash</value>
      </enum>
      <enum name='readonly'>
        <value>yes</value>
        <value>no</value>
      </enum>
    </loader>
  </os>
  <cpu>
    <mode name='host-passthrough' supported='yes'>
      <enum name='hostPassthroughMigratable'>
        <value>on</value>
        <value>off</value>
      </enum>
    </mode>
    <mode name='maximum' supported='yes'/>
    <mode name='host-model' supported='yes'>
      <model fallback='forbid'>SapphireRapids</model>
      <vendor>Intel</vendor>
      <maxphysaddr mode='passthrough' limit='46'/>
    </mode>
  </cpu>
  <memoryBacking supported='yes'>
    <enum name='sourceType'>
      <value>file</value>
      <value>anonymous</value>
      <value>memfd</value>
    </enum>
  </memoryBacking>
  <devices>
    <disk supported='yes'/>
    <hostdev supported='yes'>
      <enum name='mode'>
        <value>subsystem</value>
      </enum>
      <enum name='subsysType'>
        <value>usb</value>
        <value>pci</value>
        <value>scsi</value>
      </enum>
      <enum name='pciBackend'>
        <value>default</value>
        <value>vfio</value>
      </enum>
    </hostdev>
    <rng supported='yes'/>
    <tpm supported='yes'/>
  </devices>
  <features>
    <gic supported='no'/>
    <vmcoreinfo supported='yes'/>
    <genid supported='yes'/>
    <backingStoreInput supported='yes'/>
    <backup supported='yes'/>
    <async-teardown supported='yes'/>
    <sev supported='no'/>
    <sgx supported='no'/>
  </features>
</domainCapabilities>
"""


def write_libvirt(tree: Tree) -> None:
    """Plain outputs of virsh."""
    base = ".hosttune/commands"
    tree.files[f"{base}/virsh-version"] = VERSION.encode()
    tree.files[f"{base}/virsh-list"] = LIST.encode()
    tree.files[f"{base}/virsh-domcapabilities"] = CAPABILITIES.encode()
