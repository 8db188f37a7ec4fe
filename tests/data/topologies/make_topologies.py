#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the topologies of this folder, made up after common machines, in hwloc's XML: make_topologies.py FOLDER"""

import sys


class Topology:
    """Packages of cores, and what hangs on their PCI buses."""

    def __init__(self, packages, cores, threads):
        self.lines, self.number, self.gpus, self.links = [], 0, [], None
        self.packages, self.cores, self.threads, self.pci = packages, cores, threads, {}

    def tag(self, depth, kind, attributes, children=()):
        """One object; children are functions of their depth."""
        self.number += 1
        head = f'{" " * depth}<object type="{kind}" gp_index="{self.number}" {attributes}'
        if not children:
            self.lines.append(head + "/>")
            return
        self.lines.append(head + ">")
        for child in children:
            child(depth + 1)
        self.lines.append(f'{" " * depth}</object>')

    def sets(self, units, nodes):
        cpus = sum(1 << u for u in units)
        memory = sum(1 << n for n in nodes)
        return " ".join(f'{p}cpuset="{cpus:#010x}" {p}nodeset="{memory:#010x}"' for p in ("", "complete_"))

    def units(self, package, core=None):
        cores = range(self.cores) if core is None else [core]
        total = self.packages * self.cores
        return [package * self.cores + c + t * total for c in cores for t in range(self.threads)]

    def core(self, package, core):
        def write(depth):
            pus = [
                lambda d, u=u: self.tag(d, "PU", f'os_index="{u}" {self.sets([u], [package])}')
                for u in self.units(package, core)
            ]
            index = package * self.cores + core
            self.tag(depth, "Core", f'os_index="{index}" {self.sets(self.units(package, core), [package])}', pus)

        return write

    def package(self, package):
        def write(depth):
            sets = self.sets(self.units(package), [package])
            node = f'os_index="{package}" {sets} local_memory="549755813888"'
            children = [lambda d: self.tag(d, "NUMANode", node)]
            children += [self.core(package, c) for c in range(self.cores)]
            self.tag(depth, "Package", f'os_index="{package}" {sets}', children + self.pci.get(package, []))

        return write

    def device(self, address, kind, children=()):
        return lambda d: self.tag(d, "PCIDev", f'pci_busid="{address}" pci_type="{kind}" pci_link_speed="63.0"', children)

    def gpu(self, address, links=False):
        uuid = f"GPU-{len(self.gpus):08x}-1111-2222-3333-{int(address[5:7], 16):012x}"

        def nvml(depth):
            self.tag(
                depth,
                "OSDev",
                f'name="nvml{self.gpus.index(address)}" subtype="NVML" osdev_type="1"',
                [lambda d: self.lines.append(f'{" " * d}<info name="NVIDIAUUID" value="{uuid}"/>')],
            )
            if links:
                self.links = (self.links or []) + [self.number]

        self.gpus.append(address)
        return self.device(address, "0302 [10de:2330] [10de:16c1] a1", [nvml])

    def nic(self, address, network, verbs=None):
        def osdev(name, kind):
            return lambda d: self.tag(d, "OSDev", f'name="{name}" osdev_type="{kind}"')

        children = [osdev(network, 2)] + ([osdev(verbs, 3)] if verbs else [])
        kind = "0207 [15b3:1021] [15b3:0041] 00" if verbs else "0200 [8086:1533] [8086:0000] 03"
        return self.device(address, kind, children)

    def switch(self, address):
        return self.device(address, "0680 [10de:22a3] [10de:1796] a1")

    def bridge(self, first, last, *children):
        """A root port on bus `first` with buses up to `last` below it."""

        def port(depth):
            self.tag(
                depth,
                "Bridge",
                f'bridge_type="1-1" depth="1" bridge_pci="0000:[{first + 1:02x}-{last:02x}]" '
                f'pci_busid="0000:{first:02x}:01.0" pci_type="0604 [8086:352a] [0000:0000] 04" pci_link_speed="63.0"',
                children,
            )

        return lambda d: self.tag(
            d, "Bridge", f'bridge_type="0-1" depth="0" bridge_pci="0000:[{first:02x}-{last:02x}]"', [port]
        )

    def write(self, path, bandwidth=None):
        units = [u for p in range(self.packages) for u in self.units(p)]
        packages = [self.package(p) for p in range(self.packages)]
        sets = self.sets(units, range(self.packages))
        allowed = sets.split(" complete_")[0].replace("cpuset", "allowed_cpuset").replace("nodeset", "allowed_nodeset")
        self.tag(1, "Machine", f'os_index="0" {sets} {allowed}', packages + self.pci.get(None, []))
        if bandwidth:
            names = "".join(f"OSDev:{n} " for n in self.links)
            self.lines.append(f' <distances2hetero nbobjs="{len(self.links)}" kind="25" name="NVLinkBandwidth">')
            self.lines.append(f'  <indexes length="{len(names)}">{names}</indexes>')
            for row in range(len(self.links)):
                values = "".join(f"{bandwidth(row, column)} " for column in range(len(self.links)))
                self.lines.append(f'  <u64values length="{len(values)}">{values}</u64values>')
            self.lines.append(" </distances2hetero>")
        with open(path, "w", encoding="ascii") as out:
            out.write('<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n')
            out.write('<topology version="2.0">\n' + "\n".join(self.lines) + "\n</topology>\n")


def main(folder):
    # Eight GPUs of two sockets, each with a NIC behind the same PCI bridge; four NVSwitches join all.
    t = Topology(2, 8, 2)
    for package in range(2):
        pairs = []
        for slot in range(4):
            n, first = package * 4 + slot, 0x10 + 0x40 * package + 0x10 * slot
            gpu, nic = f"0000:{first + 2:02x}:00.0", f"0000:{first + 3:02x}:00.0"
            pairs.append(t.bridge(first, first + 3, t.gpu(gpu), t.nic(nic, f"ib{n}", f"mlx5_{n}")))
        t.pci[package] = pairs
    t.pci[0].insert(0, t.bridge(0x00, 0x01, t.nic("0000:01:00.0", "eth0")))
    t.pci[1].append(t.bridge(0xC0, 0xC1, *[t.switch(f"0000:c1:{s:02x}.0") for s in range(4)]))
    t.write(f"{folder}/nvswitch-8gpu.xml")

    # Four PCIe GPUs without links, the first ones on the second socket; one NIC of two ports a socket.
    t = Topology(2, 6, 1)
    for package, first in ((1, 0x10), (0, 0x50)):
        gpus = [t.bridge(first + 0x10 * s, first + 0x10 * s + 1, t.gpu(f"0000:{first + 0x10 * s + 1:02x}:00.0")) for s in range(2)]
        bus, port = first + 0x20, package * 2
        ports = [t.nic(f"0000:{bus + 1:02x}:00.{p}", f"ens{port + p}", f"mlx5_{port + p}") for p in range(2)]
        t.pci[package] = gpus + [t.bridge(bus, bus + 1, *ports)]
    t.write(f"{folder}/pcie-4gpu.xml")

    # As a workstation: NVLink bridges join GPUs 0 with 2 and 1 with 3, all on one socket.
    t = Topology(1, 8, 1)
    t.pci[0] = [t.bridge(0x10 * n, 0x10 * n + 1, t.gpu(f"0000:{0x10 * n + 1:02x}:00.0", links=True)) for n in range(1, 5)]
    t.write(f"{folder}/nvlink-pairs-4gpu.xml", lambda a, b: 1000000 if a == b else 100000 if a % 2 == b % 2 else 0)

    # All GPUs on the second socket, behind two PCI switches, with the only NIC on the first socket.
    t = Topology(2, 8, 1)
    t.pci[0] = [t.bridge(0x00, 0x01, t.nic("0000:01:00.0", "eno1"))]
    t.pci[1] = [
        t.bridge(first, first + 4, *[t.gpu(f"0000:{first + 1 + g:02x}:00.0") for g in range(4)]) for first in (0x80, 0xA0)
    ]
    t.write(f"{folder}/one-socket-8gpu.xml")

    # A virtual machine: PCI devices without bridges.
    t = Topology(1, 4, 1)
    t.pci[None] = [t.nic("0000:00:03.0", "eth0"), t.gpu("0000:00:06.0")]
    t.write(f"{folder}/vm-1gpu.xml")


if __name__ == "__main__":
    main(sys.argv[1])
