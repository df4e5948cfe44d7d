#!/usr/bin/env python3
"""Makes identity.json and outcome.json, the golden vectors of docs/protocol.md.

An implementation of its own, from the text of the protocol and not from the Go
code: what both agree on is the protocol. Run it in this folder.
"""
import hashlib
import json
from urllib.parse import quote

LOCK = 0x756E6176657A2001


def part(b):
    return len(b).to_bytes(4, "big") + b


def digest(*parts):
    return hashlib.sha256(b"".join(part(p) for p in parts)).digest()


def bigint(n):
    return n - (1 << 64) if n >> 63 else n


def identity(tenant, effect, parts, steps):
    names = [tenant, effect, *parts]
    sum_ = digest(*(n.encode() for n in names))
    return {
        "tenant": tenant,
        "effect": effect,
        "parts": parts,
        "text": "/".join(quote(n, safe="$&+:=@-_.~") for n in names),
        "sum": sum_.hex(),
        "key": sum_[:16].hex(),
        # A string: it does not fit the numbers of every JSON reader.
        "hash64": str(bigint(int.from_bytes(sum_[:8], "big") ^ LOCK)),
        "derived": {s: "uv1-" + digest(b"derive", sum_, s.encode())[:16].hex() for s in steps},
    }


def outcome(key, state, version, fingerprint, code, not_replayable, header, body):
    stored = b"".join(part(n) + part(v) for n, v in header)
    front = bytes([state]) + version.to_bytes(4, "big") + (code & (1 << 64) - 1).to_bytes(8, "big") + bytes([not_replayable])
    return {
        "key": key.hex(),
        "state": state,
        "fingerprint_version": version,
        "fingerprint": fingerprint.hex(),
        "code": code,
        "not_replayable": bool(not_replayable),
        "header": [[n.hex(), v.hex()] for n, v in header],
        "body": body.hex(),
        "stored_header": stored.hex(),
        "checksum": digest(b"outcome", key, front, fingerprint, stored, body)[:16].hex(),
    }


identities = [
    identity("acme", "order.create.v1", ["1001"], ["", "charge", "cobrança"]),
    identity("", "http", ["", "8e03978e-40d5-43dd-bc93-6894a57f9324"], [""]),
    identity("acme", "http", ["user-7", 'a"b\\c {}~!'], [""]),
    # The cut between parts counts.
    identity("a", "b", ["c", "d"], [""]),
    identity("a", "b", ["cd"], [""]),
    identity("a", "bc", ["d"], [""]),
    identity("ab", "c", ["d"], [""]),
    identity("a", "b", ["c", "", "d"], [""]),
    identity("a", "b", ["c", "d", ""], [""]),
    identity("a", "b", ["", "c", "d"], [""]),
    # Text is bytes: no normal form, no folding, no trimming.
    identity("münchen", "bestellung.anlegen.v1", ["\u00e9"], ["", "\u00e9"]),
    identity("münchen", "bestellung.anlegen.v1", ["e\u0301"], ["", "e\u0301"]),
    identity("日本", "注文.v1", ["東京/1", "100%"], ["", "発送"]),
    identity("Acme", "order.create.v1", ["1001"], [""]),
    identity("acme", "order.create.v1", [" 1001"], [""]),
    identity("acme", "order.create.v1", ["1001 "], [""]),
    identity("acme", "order.create.v1", ["01001"], [""]),
    identity("a/b", "c?d", ["e;f,g", "h#i", "j&k=l+m@n:o$p"], [""]),
    identity("x", "y", ["\u0001\t\n\u007f", "\U0010ffff", "\ufeff"], [""]),
    identity("x", "y", ["שלום", "🙂"], [""]),
    # The bounds.
    identity("t" * 1024, "e" * 1024, ["p" * 1024], ["", "s" * 1024]),
    identity("t", "e", [str(n) for n in range(16)], [""]),
]

every = bytes(range(256))
key = digest(b"acme", b"order.create.v1", b"1001")[:16]
outcomes = [
    outcome(key, 6, 0, b"", 0, 0, [], b""),
    outcome(key, 6, 1, hashlib.sha256(b"payload").digest(), 201, 0,
            [(b"Content-Type", b"application/json"), (b"Location", b"/orders/1001")], b'{"id":1001}'),
    outcome(bytes(16), 6, 1, hashlib.sha256(b"payload").digest(), 201, 0,
            [(b"Content-Type", b"application/json"), (b"Location", b"/orders/1001")], b'{"id":1001}'),
    outcome(key, 6, 2, b"\x00", 200, 0, [(b"Link", b"<a>"), (b"Link", b"<b>")], every),
    outcome(key, 6, 2, b"\x00", 200, 0, [(b"Link", b"<b>"), (b"Link", b"<a>")], every),
    outcome(key, 6, 32767, every[:64], 200, 1, [(every, b""), (b"", every), (b"", b"")], b""),
    outcome(key, 7, 0, b"opaque", -7, 0, [], b"discarded"),
    outcome(key, 7, 0, b"opaqu", -7, 0, [], b"ediscarded"),
    outcome(key, 6, 1, b"x", 2**31 - 1, 0, [], b"z" * 300),
    outcome(key, 6, 1, b"x", -2**63, 0, [(b"n" * 300, b"v" * 700)], b""),
]

for name, vectors in (("identity.json", identities), ("outcome.json", outcomes)):
    with open(name, "w", encoding="utf-8", newline="\n") as f:
        json.dump(vectors, f, indent=1, ensure_ascii=True)
        f.write("\n")
