"""A client of Notify in Python, written from docs/protocol/notify.md alone, against a real node.

    python notify.py TIDINGS       the program to start the node with; needs `websockets` and `xxhash`

It goes through what the page says: connection, handshake, registration, digest, publications by curl, notifications, acks,
flow control in both directions, a new channel in the same session, a restart with the kept token, a node that was killed, and
a refused token. It ends with status 0 if all of it holds.
"""

import asyncio
import base64
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile

import websockets
import xxhash

APP = "default"
PATIENCE = 60


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def object_hash(salt: bytes, name: bytes) -> int:
    """XXH3 with 128 bits over the length of the salt (4 bytes, big-endian), the salt, and the object's bytes."""
    return xxhash.xxh3_128_intdigest(len(salt).to_bytes(4, "big") + salt + name)


class Node:
    """`tidings serve` on a port of its own."""

    def __init__(self, program: str, place: str):
        self.program, self.place, self.address = program, place, "127.0.0.1:0"

    def start(self) -> None:
        arguments = ["serve", "--data", os.path.join(self.place, "data"), "--listen", self.address, "--log", "error"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDINGS_")}
        self.process = subprocess.Popen(
            [self.program, *arguments], stdout=subprocess.PIPE, text=True, env=environment
        )
        for line in self.process.stdout:
            if found := re.search(r"listening on http://(\S+)", line):
                self.address = found.group(1)
            if line.startswith("ready"):
                return
        raise SystemExit("the node did not become ready")

    def make_application(self) -> None:
        create = [self.program, "app", "create", APP, "--server", f"http://{self.address}"]
        subprocess.run([*create, "--timeout", str(PATIENCE)], stdout=subprocess.DEVNULL, check=True)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def publish(self, name: str, version: int) -> None:
        url = f"http://{self.address}/v1/notify/{APP}/{name}"
        command = ["curl", "-sS", "--fail", "--retry", "30", "--retry-all-errors", "--retry-delay", "1"]
        subprocess.run([*command, "-X", "POST", url, "-d", json.dumps({"version": version})], check=True)


class Client:
    """A session, over one channel after the other."""

    def __init__(self, node: Node, objects: list[str], kept: str | None = None):
        self.node, self.objects, self.kept = node, objects, kept
        self.token = self.salt = self.session = None
        self.contact = self.latest = self.echo = 0
        self.changes: list[tuple[int, dict]] = []
        self.synced = False
        self.versions: dict[str, int] = {}
        self.unknowns: list[str] = []
        self.refusals: list[str] = []

    # ---- the channel ------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Opens a connection and a channel on it: operation 1, which goes on in both directions."""
        self.socket = await websockets.connect(
            f"ws://{self.node.address}/v1/frames",
            subprotocols=["tidings.v1.json"],
            additional_headers={"x-tidings-app": APP},
        )
        await self.frame({"control": {"hello": {"min": 1, "max": 1, "agent": "python"}}})
        welcome = json.loads(await self.socket.recv())["control"]["welcome"]
        assert welcome["version"] == 1, welcome
        self.credit = self.granted = welcome["limits"]["initialCredit"]
        self.consumed = 0
        self.contact += 1
        self.synced = False
        if self.token is None:
            self.nonce = str(secrets.randbits(64))
            hello = {"nonce": self.nonce, "persistent": True}
            if self.kept:
                hello["previous"] = self.kept
            await self.up({"hello": hello})
        else:
            await self.say()

    async def close(self) -> None:
        await self.socket.close()

    async def frame(self, frame: dict) -> None:
        await self.socket.send(json.dumps(frame))

    async def up(self, up: dict) -> None:
        while self.credit == 0:
            await self.hear()
        self.credit -= 1
        await self.frame({"op": "1", "more": True, "notify": {"up": {**up, "contact": str(self.contact)}}})

    async def say(self, acks: list[dict] | None = None) -> None:
        """Everything that was not echoed, the digest of what is intended, and acks."""
        first = self.changes[0][0] if self.changes else self.latest + 1
        up = {"token": self.token, "latest": str(self.latest), "first": str(first), "digest": self.digest()}
        up["changes"] = [change for _, change in self.changes]
        up["acks"] = acks or []
        await self.up(up)

    def digest(self) -> dict:
        total = sum(object_hash(self.salt, name.encode()) for name in self.objects) % 2**128
        return {"count": len(self.objects), "sum": b64(total.to_bytes(16, "big"))}

    async def register(self, name: str) -> None:
        self.objects.append(name)
        self.latest += 1
        self.changes.append((self.latest, {"register": {"object": b64(name.encode())}}))
        self.synced = False
        await self.say()

    # ---- what is heard ----------------------------------------------------------------------------------------------

    async def hear(self) -> None:
        frame = json.loads(await self.socket.recv())
        control = frame.get("control", {})
        if "error" in control:
            raise ConnectionError(control["error"]["code"])
        if "ping" in control:
            await self.frame({"control": {"pong": control["ping"]}})
        if "credit" in control:
            self.credit += control["credit"]["frames"]
        down = frame.get("notify", {}).get("down")
        if down is None:
            return
        self.consumed += 1
        if self.consumed >= self.granted // 2:
            await self.frame({"op": "1", "control": {"credit": {"frames": self.consumed}}})
            self.consumed = 0
        await self.take(down)

    async def take(self, down: dict) -> None:
        if "refusal" in down:
            self.refusals.append(down["refusal"]["reason"])
            return
        grant = down.get("grant")
        if grant and self.token is None and grant["nonce"] == self.nonce:
            self.token = self.kept = grant["token"]
            self.session, self.salt = grant["session"], base64.b64decode(grant["salt"])
            self.latest = self.echo = 0
            self.changes.clear()
            await self.say()
        if down.get("session") != self.session:
            return
        self.echo = max(self.echo, int(down.get("echo", 0)))
        self.changes = [change for change in self.changes if change[0] > self.echo]
        acks = []
        for news in down.get("notifications", []):
            name = base64.b64decode(news["object"]).decode()
            if "unknown" in news:
                self.unknowns.append(name)
                acks.append({"object": news["object"], "unknown": news["unknown"]})
            else:
                self.versions[name] = max(self.versions.get(name, 0), int(news["version"]))
                acks.append({"object": news["object"], "version": news["version"]})
        if acks:
            await self.say(acks)
        if "digest" in down and int(down.get("echo", 0)) == self.latest and not self.changes:
            theirs = (down["digest"].get("count", 0), down["digest"]["sum"])
            ours = self.digest()
            if theirs == (ours["count"], ours["sum"]):
                self.synced = down.get("pending", 0) == 0
            else:
                self.latest += 1
                objects = [{"object": b64(name.encode())} for name in self.objects]
                self.changes.append((self.latest, {"replace": {"objects": objects}}))
                await self.say()

    async def until(self, what: str, holds, tells: bool = True) -> None:
        async def loop() -> None:
            while not holds():
                try:
                    await asyncio.wait_for(self.hear(), 1)
                except TimeoutError:
                    # What was not answered is said again.
                    await (self.say() if self.token else asyncio.sleep(0))

        try:
            await asyncio.wait_for(loop(), PATIENCE)
        except TimeoutError:
            raise SystemExit(f"waited in vain until {what}") from None
        if tells:
            print(f"  {what}")


async def follow_the_page(node: Node) -> None:
    assert object_hash(bytes([7] * 16), b"object") == 60169108767705709924138237480350342201
    client = Client(node, [])
    await client.connect()
    await client.until("a session is granted", lambda: client.token)
    await client.register("prices")
    await client.until("nobody has published: it is unknown", lambda: "prices" in client.unknowns)
    await client.until("the digests agree", lambda: client.synced)

    node.publish("prices", 41)
    await client.until("a version is heard", lambda: client.versions.get("prices") == 41)
    # More messages in both directions than are granted at first.
    for version in range(42, 100):
        node.publish("prices", version)
        heard = lambda: client.versions["prices"] >= version
        await client.until(f"version {version} is heard", heard, tells=False)
    print("  more is said in both directions than was granted at first")

    await client.close()
    node.publish("prices", 100)
    await client.connect()
    await client.until("a new channel tells what was missed", lambda: client.versions["prices"] == 100)
    await client.close()

    again = Client(node, ["prices"], client.kept)
    node.publish("prices", 101)
    await again.connect()
    await again.until("a restart with the kept token hears", lambda: again.versions.get("prices") == 101)
    await again.until("the digests agree without registering again", lambda: again.synced and again.latest == 0)

    await asyncio.to_thread(node.kill)
    await asyncio.to_thread(node.start)
    await again.connect()
    node.publish("prices", 102)
    await again.until("a node that was killed tells on", lambda: again.versions["prices"] == 102)
    await again.up({"token": b64(b"forged"), "latest": "0", "first": "1"})
    await again.until("a forged token is refused", lambda: "NOTIFY_REFUSED_BAD_TOKEN" in again.refusals)
    await again.close()


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as place:
        node = Node(sys.argv[1], place)
        node.start()
        try:
            node.make_application()
            asyncio.run(follow_the_page(node))
        finally:
            node.kill()
    print("the page holds")


main()
