#!/usr/bin/env python3
"""Three nodes as one peer of perf/compare, each made and run by a peer's script for one node.

nodes.py prepare SCRIPT DIR PORT [name=value]...   node N below DIR/N, the first at PORT
nodes.py run SCRIPT DIR                            runs them; when one ends, or on SIGTERM, all are ended
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

sys.dont_write_bytecode = True

import machine  # noqa: E402

NODES = (1, 2, 3)
CLUSTER_ID = "kuringCompareCluster0Q"
CONTROLLERS = "CONTROLLER"
COMMON = (
    "process.roles=broker,controller",
    f"controller.listener.names={CONTROLLERS}",
    "offsets.topic.replication.factor=3",
    "transaction.state.log.replication.factor=3",
    "transaction.state.log.min.isr=2",
)
# Of one node only: they would all want the same port.
OF_THE_FIRST = ("kuring.admin.listener=",)


def main() -> None:
    match sys.argv[1:]:
        case ["prepare", script, directory, port, *settings]:
            prepare(script, directory, int(port), settings)
        case ["run", script, directory]:
            run(script, directory)
        case _:
            sys.exit(__doc__)


def prepare(script: str, directory: str, first_port: int, settings: list[str]) -> None:
    # All are bound at once, so that none is given twice.
    bound = [socket.create_server(("127.0.0.1", 0)) for _ in range(2 * len(NODES) - 1)]
    ports = [listener.getsockname()[1] for listener in bound]
    for listener in bound:
        listener.close()
    clients, controllers = [first_port, *ports[:len(NODES) - 1]], ports[len(NODES) - 1:]
    voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in zip(NODES, controllers))
    environment = dict(os.environ, CLUSTER_ID=CLUSTER_ID)
    made = []
    for node, port, controller in zip(NODES, clients, controllers):
        own = [setting for setting in settings if node == NODES[0] or not setting.startswith(OF_THE_FIRST)]
        line = [script, "prepare", os.path.join(directory, str(node)), str(port), *COMMON, f"node.id={node}",
                f"controller.quorum.voters={voters}", f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}",
                f"listeners=PLAINTEXT://127.0.0.1:{port},{CONTROLLERS}://127.0.0.1:{controller}", *own]
        made.append(subprocess.Popen(line, env=environment, stdin=subprocess.DEVNULL))
    if any([process.wait() != 0 for process in made]):
        sys.exit(f"{script} prepare: failed")


def run(script: str, directory: str) -> None:
    """The script becomes the broker, so that the children are the three of them."""
    everywhere = frozenset(os.sched_getaffinity(0))
    lines = [[script, "run", os.path.join(directory, str(node))] for node in NODES]
    running = {process.pid: process for process in (
        subprocess.Popen(line, stdin=subprocess.DEVNULL, preexec_fn=machine.confined(everywhere)) for line in lines)}

    def end(*_: object) -> None:
        # Nobody else waits for them: an id is theirs until it is taken out below.
        for pid in running:
            os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    worst = 0
    while running:
        pid, status = os.wait()
        process = running.pop(pid)
        process.returncode = os.waitstatus_to_exitcode(status)
        worst = max(worst, abs(process.returncode))
        end()
    sys.exit(worst)


if __name__ == "__main__":
    main()
