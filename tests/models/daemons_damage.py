"""Rules of the model of daemons: what rots on their disks, and checkpoints."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

import ffrecord
import ffrecord.checkpoint as ckpt
from daemons_asking import AWAY, CONTENT_TURNS, LISTS, OF_CLUSTER, SURE_S, WHICH, Asking, is_calm
from daemons_places import NODES
from daemons_reading import BY_TURNS, TRAILER, Hosts, by_records, damage, heal
from daemons_truth import RECORDS
from ffrecord.errors import ConflictError, CorruptionError


class Damages(Asking):
    """Damage, and steps of a run."""

    # Damage.

    @precondition(is_calm)
    @rule(which=WHICH, restart=st.booleans(), by=OF_CLUSTER)
    def damage_in_cluster(self, which: int, restart: bool, by: Hosts) -> None:
        """Damage a replica or a member of a stripe: readers get the right bytes, and it heals."""
        name, content = self.pick_settled(NODES, which)
        if content is None or self.places["cluster"].name(name).durability == "r1":
            return
        self.world.await_filled()
        found = self.world.extents("cluster", content.file)
        assert found, f"no node has an extent of {name}"
        node, path = found[which % len(found)]
        good = path.read_bytes()
        damage(path, content.size_bytes)
        self.did(f"damage of {name} at {node}")
        if restart:
            self.world.cluster.stop(node)
            self.world.cluster.start(node)
            self.world.cluster.wait_ready()
        with ffrecord.open(self.address(by, name) + BY_TURNS) as reader:

            def read() -> None:
                for first in range(RECORDS):
                    reader.read([first])
                assert bytes(reader.read(range(RECORDS)).data) == content.data

            heal(self.world, node, path, good, read)
        self.ask(by)

    @rule(which=WHICH, restart=st.booleans())
    def damage_alone(self, which: int, restart: bool) -> None:
        """Damage what a daemon by itself has: an error says so; published again it is whole."""
        hosts = ("alone",)
        name, content = self.pick_settled(hosts, which)
        if content is None:
            return
        (_, path) = self.world.extents("alone", content.file)[0]
        damage(path, content.size_bytes)
        if restart:
            self.world.alone.stop()
            self.world.alone.start()
        bad = self.world.metrics("alone").get("ffrecord_extents_bad")
        try:
            by_records(self.address(hosts, name), SURE_S)
        except CorruptionError:
            self.await_told(bad)
        else:
            raise AssertionError(f"{name} is damaged, and is read")
        self.publish_one(hosts, name, self.content("small"), "replicas", replace=True)
        self.ask(hosts)

    def await_told(self, bad_before: float) -> None:
        """Return once the daemon by itself says that it has damage."""
        end = time.monotonic() + SURE_S
        while self.world.metrics("alone").get("ffrecord_extents_bad") <= bad_before:
            assert time.monotonic() < end, "a reader met damage, and the daemon does not tell it"
            time.sleep(0.02)

    @precondition(is_calm)
    @rule(which=WHICH, by=OF_CLUSTER)
    def damage_step(self, which: int, by: Hosts) -> None:
        """Damage a replica of a segment: the step is loaded and whole all the same, and heals."""
        steps = self.places["cluster"].steps
        if not steps:
            return
        self.world.await_filled()
        number = steps[max(steps)]
        found = self.world.extents("cluster", np.full(1000, number).tobytes())
        assert found, f"no node has an extent of step {max(steps)}"
        node, path = found[which % len(found)]
        run = self.address(by, f"{self.prefix}run") + BY_TURNS

        def load() -> None:
            loaded: Any = ckpt.load(run, step=max(steps), timeout_s=SURE_S)
            assert np.all(loaded["w"] == number), f"step {max(steps)} has other values"
            assert ckpt.verify(run, step=max(steps)) == []

        good = path.read_bytes()
        damage(path, len(good) - TRAILER, every=1)  # Its short table as well.
        self.did(f"damage of step {max(steps)} at {node}")
        heal(self.world, node, path, good, load)

    # Checkpoints.

    @rule(hosts=LISTS, by=LISTS)
    def save(self, hosts: Hosts, by: Hosts) -> None:
        """Save the next step, and ask for the latest by other addresses."""
        hosts = self.usable(hosts)
        place = self.place(hosts)
        step = max([*place.steps, *place.late_steps], default=0) + 1
        number = float(next(CONTENT_TURNS))
        run = self.address(hosts, f"{self.prefix}run")
        state = {"w": np.full(1000, number)}
        try:
            ckpt.save(run, step, state, group="alone", timeout_s=self.seconds(hosts))
        except (*AWAY, ConflictError) as error:
            self.failed(hosts, error, "save")
            place.late_steps.add(step)
        else:
            place.steps[step] = number
        self.ask_latest(self.usable(by, hosts))

    @rule(hosts=LISTS, keep=st.integers(1, 2), by=LISTS)
    def prune(self, hosts: Hosts, keep: int, by: Hosts) -> None:
        """Remove old steps while the newest is loaded: no other goes, and none comes back."""
        hosts = self.usable(hosts)
        place = self.place(hosts)
        if place.late_steps or not place.steps:
            return
        run = self.address(hosts, f"{self.prefix}run")
        old = sorted(place.steps)[:-keep]
        place.left_steps |= set(old)
        found: set[int] | None = None
        with ThreadPoolExecutor(1) as pool:
            loading = pool.submit(self.ask_latest, hosts)
            try:
                removed = ckpt.prune(run, keep_last=keep, timeout_s=self.seconds(hosts))
            except (*AWAY, ConflictError) as error:
                self.failed(hosts, error, "prune")
            else:
                found = {each.step for each in removed}
                assert found >= set(old), f"{old} are old, and {sorted(found)} were removed"
                assert found <= place.left_steps, f"{sorted(found)} were removed, and not {old}"
            loading.result()
            if found is not None:
                place.left_steps.clear()
        self.did(f"pruned by {hosts}: {old}")
        for step in old:
            del place.steps[step]
        self.ask_latest(self.usable(by, hosts))

    def ask_latest(self, hosts: Hosts) -> None:
        """Ask which steps there are and which is the latest, and load it."""
        place = self.place(hosts)
        run = self.address(hosts, f"{self.prefix}run")
        try:
            latest = ckpt.latest(run, timeout_s=self.seconds(hosts))
        except (*AWAY, ConflictError) as error:
            return self.failed(hosts, error, "latest")
        newest = max(place.steps, default=0)
        found = latest.step if latest else 0
        later = {step for step in place.late_steps if step > newest}
        assert found in {newest, *later}, f"latest by {hosts} is {found}, not {newest} or {later}"
        if not self.is_sure(hosts):
            return
        listed = {each.step for each in ckpt.list(run, timeout_s=SURE_S)}
        may_be = {*place.steps, *place.late_steps, *place.left_steps}
        assert {*place.steps} - place.left_steps <= listed <= may_be, f"{run} has steps {listed}"
        if newest:
            loaded: Any = ckpt.load(run, step=newest, timeout_s=SURE_S)
            assert np.all(loaded["w"] == place.steps[newest]), f"step {newest} has other values"
