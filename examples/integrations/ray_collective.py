"""``ray.util.collective``, the collectives between Ray's actors: two actors add their tensors.

    OCCL_IN_PLACE_OF=gloo python ray_collective.py

Ray knows Gloo and NCCL by name, so occl takes Gloo's place. Actors get the variables of the process that
starts Ray on this machine; give actors of a running cluster the variable in ``runtime_env``.
"""

import argparse
import statistics
import time

import ray
import torch
from ray.util import collective


@ray.remote(num_cpus=1)
class Adder:
    def add(self, value: float, numbers: int, times: int) -> tuple[list[float], float]:
        """The values in the sum of both actors' tensors, and the median of microseconds."""
        taken = []
        for _ in range(times):
            tensor = torch.full((numbers,), value)
            begin = time.perf_counter()
            collective.allreduce(tensor)
            taken.append(time.perf_counter() - begin)
        return tensor.unique().tolist(), statistics.median(taken) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="Add tensors of Ray's actors.")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--kib", type=int, default=1024, help="of float32 in each tensor")
    given = parser.parse_args()
    with ray.init(num_cpus=2):
        actors = [Adder.remote() for _ in range(2)]
        collective.create_collective_group(actors, 2, [0, 1], backend="gloo")
        numbers = given.kib * 256
        both = ray.get([actor.add.remote(i + 1.0, numbers, given.times) for i, actor in enumerate(actors)])
    print("sums", *(value for values, _ in both for value in values))
    print(f"2 actors, {max(taken for _, taken in both):.0f} us")


if __name__ == "__main__":
    main()
