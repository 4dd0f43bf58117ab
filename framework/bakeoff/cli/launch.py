"""`bakeoff launch slurm RECIPE`: a batch script that trains a recipe on a cluster and continues after preemption."""

from __future__ import annotations

import argparse
import re
import shlex
import signal
import sys
from pathlib import Path

from bakeoff.errors import UserError
from bakeoff.interfaces.command import Command

#: Seconds before the time limit at which ranks are asked to write a checkpoint and stop.
WARNING = 120

SCRIPT = """\
#!/bin/bash
{directives}

# Written by `bakeoff launch slurm`; submit it with sbatch. {warning} s before the time limit, and when it is preempted,
# the job writes a checkpoint, stops, and is queued again; it then continues in the same folder.
set -u
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((15000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

cd {here} || exit 2
srun --kill-on-bad-exit=1 {command}
code=$?
if [ "$code" -eq {asked} ]; then  # a rank was told by SIGUSR1 that time is almost up
  scontrol requeue "$SLURM_JOB_ID"
  exit
fi
exit "$code"
"""


class Launch(Command):
    """Write a batch script for a recipe: one task a device, queued again at its time limit, continuing where it was."""

    help = "write a batch script that trains a recipe on a cluster"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """The cluster's kind, the recipe, and what is asked of the cluster."""
        parser.add_argument("system", choices=["slurm"], help="batch system")
        parser.add_argument("recipe", help="YAML file, or bakeoff:models/NAME.yaml for one that is shipped")
        parser.add_argument("overrides", nargs="*", metavar="path=value", help="for example model.depth=12")
        parser.add_argument("--nodes", type=int, default=1, help="machines (default: 1)")
        parser.add_argument("--devices", type=int, default=1, help="devices of each machine (default: 1)")
        parser.add_argument("--time", default="24:00:00", help="limit of one start (default: 24:00:00)")
        parser.add_argument("--partition", help="where to queue")
        parser.add_argument("--account", help="who pays")
        parser.add_argument("--folder", type=Path, help="folder of the run (default: runs/<recipe>/<hash>)")
        parser.add_argument("--output", type=Path, help="file to write the script to (default: print it)")

    def run(self, arguments: argparse.Namespace) -> int:
        """Check the recipe for these devices, and write the script."""
        from bakeoff.recipe import recipe
        from bakeoff.train.devices import check_devices

        for name in ("nodes", "devices"):
            if getattr(arguments, name) < 1:
                raise UserError(f"--{name} is {getattr(arguments, name)}; it must be at least 1")
        ranks = arguments.nodes * arguments.devices
        overrides = [
            *arguments.overrides,
            f"trainer.devices={arguments.devices}",
            f"trainer.num_nodes={arguments.nodes}",
        ]
        made = recipe(arguments.recipe, overrides)
        if made.tree["trainer"].get("strategy") in (None, "auto"):
            overrides.append(f"trainer.strategy={'ddp' if ranks > 1 else 'auto'}")
            made = recipe(arguments.recipe, overrides)
        made.check()
        check_devices(made, made.demands())
        folder = (arguments.folder or Path("runs") / made.name / made.hash()).absolute()
        folder.parent.mkdir(parents=True, exist_ok=True)  # SLURM writes its log there, and does not make it
        script = slurm(
            name=made.name,
            words=["fit", arguments.recipe, *overrides],
            folder=folder,
            here=Path.cwd(),
            nodes=arguments.nodes,
            devices=arguments.devices,
            gpus=made.tree["trainer"].get("accelerator") != "cpu",
            time=arguments.time,
            others={name: getattr(arguments, name) for name in ("partition", "account")},
        )
        if arguments.output is None:
            print(script, end="")
            return 0
        arguments.output.write_text(script)
        print(f"sbatch {shlex.quote(str(arguments.output))}", file=sys.stderr)
        return 0


def slurm(
    *,
    name: str,
    words: list[str],
    folder: Path,
    here: Path,
    nodes: int,
    devices: int,
    gpus: bool,
    time: str,
    others: dict[str, str | None],
) -> str:
    """The batch script; safe for any path, name and value."""
    wanted = {
        "job-name": f"bakeoff-{name}",
        "nodes": str(nodes),
        "ntasks-per-node": str(devices),
        "gpus-per-node": str(devices) if gpus else None,
        "time": time,
        **others,
        "signal": f"USR1@{WARNING}",
        "requeue": "",
        "open-mode": "append",
        "output": str(folder).replace("%", "%%") + ".slurm-%j.txt",
    }
    directives = [_directive(key, value) for key, value in wanted.items() if value is not None]
    command = [sys.executable, "-m", "bakeoff", *words, "--folder", str(folder)]
    return SCRIPT.format(
        directives="\n".join(directives),
        warning=WARNING,
        here=shlex.quote(str(here)),
        command=shlex.join(command),
        asked=128 + signal.SIGUSR1,
    )


def _directive(key: str, value: str) -> str:
    """A line that sbatch reads: it knows double quotes and backslashes, and no other character is special to it."""
    if "\n" in value:
        raise UserError(f"{key} {value!r} has a line break, which a batch script cannot hold in its head")
    if not value:
        return f"#SBATCH --{key}"
    plain = re.fullmatch(r"[\w@%+=:,./-]+", value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f"#SBATCH --{key}={value}" if plain else f'#SBATCH --{key}="{escaped}"'
