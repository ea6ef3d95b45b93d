"""What lies where in this process, as the kernel says."""

from __future__ import annotations

from bisect import bisect_right


class Maps:
    """The mappings of now."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, str]] = []
        with open("/proc/self/maps") as maps:
            for line in maps:
                low, high = (int(end, 16) for end in line.split()[0].split("-"))
                self._ranges.append((low, high, line))
        self._ranges.sort()

    def lies_shared(self, address: int) -> bool:
        """Whether it lies in a region that torch_occl has made for peers."""
        at = bisect_right(self._ranges, (address, 1 << 64)) - 1
        if at < 0 or address >= self._ranges[at][1]:
            raise AssertionError(f"{address:#x} is mapped nowhere")
        return "memfd:occl" in self._ranges[at][2]
