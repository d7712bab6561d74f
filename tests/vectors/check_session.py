"""The check of session.json: one session with every message and secret, from advert to verified sum."""

from __future__ import annotations

import hashlib
import itertools
import math
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hpke import MLKEM768X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from primitives import (
    TAG_WORDS,
    Disagreement,
    aes_ctr,
    audit_path,
    decode,
    digest,
    encode,
    expect,
    hkdf,
    key_pair,
    layout_digest,
    little_endian,
    prg_key,
    recover,
    share_number,
    tree_hash,
    unseal,
)


def check_session(vector: Any) -> int:
    session = Session(vector)
    session.check_digests()
    session.check_adverts()
    session.check_dealings()
    session.check_masked_vectors()
    session.check_consistency()
    session.check_answers()
    session.check_sum()
    session.check_verified_sum()
    return len(vector["silos"])


class Session:
    def __init__(self, vector: Any) -> None:
        self.vector = vector
        self.terms = vector["terms"]
        self.silos = vector["silos"]
        self.sharers = vector["sharers"]
        self.survivors = vector["survivors"]
        self.lost = [name for name in self.sharers if name not in self.survivors]
        self.cohort_digest = bytes.fromhex(vector["cohort_digest"])
        self.x = {name: rank for rank, name in enumerate(self.terms["names"], start=1)}
        self.certificates: dict[str, x509.Certificate] = {}
        # (secret, dealer, receiver) -> share
        self.shares: dict[tuple[str, str, str], bytes] = {}

    def secret(self, name: str, label: str) -> bytes:
        return bytes.fromhex(self.silos[name][label])

    def check_digests(self) -> None:
        terms = self.terms
        layout = layout_digest(self.vector["quantities"], terms["members"])
        expect("layout digest", layout.hex(), self.vector["layout_digest"])
        computed = digest(
            "session",
            terms["federation"],
            bytes.fromhex(terms["job_digest"]),
            terms["roster_version"],
            bytes.fromhex(terms["roster_digest"]),
            terms["round"],
            terms["phase"],
            terms["attempt"],
            terms["names"],
            layout,
            terms["members"],
            terms["threshold"],
            terms["min_cohort"],
            bytes.fromhex(terms["state_digest"]),
        )
        expect("session digest", computed.hex(), self.vector["session_digest"])
        members = len(terms["names"])
        expect("m", members, terms["members"])
        expect("t", 2 * members // 3 + 1, terms["threshold"])
        expect("min_cohort", max(3, members // 3 + 2), terms["min_cohort"])

    def check_adverts(self) -> None:
        bodies = []
        for name in sorted(self.silos):
            body = bytes.fromhex(self.silos[name]["advert"]["body"])
            fields = decode("advert", body)
            self.certificates[name] = x509.load_der_x509_certificate(fields[2])
            self.open(name, "advert", self.silos[name]["advert"])
            expected = [
                name,
                bytes.fromhex(self.vector["session_digest"]),
                fields[2],
                key_pair(self.secret(name, "channel_seed"))[0],
                self.mask_key(name)[0],
                digest("self-mask-commitment", name, self.secret(name, "self_mask_seed")),
                digest("sum-key", name, self.secret(name, "sum_key")),
            ]
            expect(f"advert of {name}", fields[:7], expected)
            expect(f"fields of the advert of {name}", len(fields), 9)
            bodies.append(body)
        for name in sorted(self.silos):
            *_, statement, echoes = decode("advert", bytes.fromhex(self.silos[name]["advert"]["body"]))
            self.check_statement(name, statement)
            echoed = [peer for peer, _ in echoes]
            expect(f"echoes of {name}", echoed, sorted(set(echoed) & self.silos.keys() - {name}))
            for peer, said in echoes:
                self.check_statement(peer, said)
        computed = digest("cohort", bytes.fromhex(self.vector["session_digest"]), bodies)
        expect("cohort digest", computed, self.cohort_digest)

    def check_statement(self, name: str, said: list[Any]) -> None:
        """What a silo says of its ledger, in its own advert or in an echo; the mark is its secret."""
        sequence, mark, signature = said
        expect(f"mark of {name}", len(mark), 32)
        body = encode("ledger-standing", self.terms["federation"], name, sequence, mark)
        self.verify(name, "ledger-standing", body, signature)

    def check_dealings(self) -> None:
        for dealer in self.sharers:
            receivers = [name for name in sorted(self.silos) if name != dealer]
            envelopes = [bytes.fromhex(envelope) for envelope in self.silos[dealer]["envelopes"]]
            expect(f"envelopes of {dealer}", len(envelopes), len(receivers))
            for receiver, envelope in zip(receivers, envelopes, strict=True):
                self.check_envelope(dealer, receiver, decode("envelope", envelope))
            self.check_tree(dealer, [hashlib.sha256(envelope).digest() for envelope in envelopes])
            self.check_secret("recovery", dealer, self.secret(dealer, "recovery_seed"))

    def check_tree(self, dealer: str, leaves: list[bytes]) -> None:
        """The signed root and every path that was relayed are those of RFC 6962."""
        fields = self.open(dealer, "dealing", self.silos[dealer]["dealing"])
        own_hash = fields[2]  # of a share that is known only where the dealer answered: check_answers
        expect(f"dealing of {dealer}", fields, [self.cohort_digest, dealer, own_hash, tree_hash(leaves)])
        receivers = [name for name in sorted(self.silos) if name != dealer]
        for place, receiver in enumerate(receivers):
            if receiver in self.sharers:
                dealers = [name for name in self.sharers if name != receiver]
                relayed = self.silos[receiver]["paths"][dealers.index(dealer)]
                expect(f"path {dealer} to {receiver}", audit_path(place, leaves).hex(), relayed)

    def check_envelope(self, dealer: str, receiver: str, fields: list[Any]) -> None:
        scope = f"envelope {dealer} to {receiver}"
        info = encode("sealed-shares", self.cohort_digest, dealer, receiver)
        sealed = unseal(key_pair(self.secret(receiver, "channel_seed"))[1], fields[5], info)
        self_mask_share, recovery_share, sum_key = sealed[:33], sealed[33:66], sealed[66:]
        expect(f"{scope}: sum key", sum_key, self.secret(dealer, "sum_key"))
        self.shares["self-mask", dealer, receiver] = self_mask_share
        self.shares["recovery", dealer, receiver] = recovery_share
        seed_hash = seed = b""
        if dealer < receiver:
            seed = self.pair_seed(dealer, receiver)
            seed_hash = digest("pair-seed-hash", dealer, receiver, seed)
            info = encode("sealed-pair-seed", self.cohort_digest, dealer, receiver)
            expect(f"{scope}: pair seed", unseal(self.mask_key(receiver)[1], fields[7], info), seed)
        expected = [
            self.cohort_digest,
            dealer,
            receiver,
            digest("self-mask-share-hash", dealer, receiver, self_mask_share),
            digest("recovery-share-hash", dealer, receiver, recovery_share),
            fields[5],
            seed_hash,
            fields[7] if seed else b"",
        ]
        expect(scope, fields, expected)

    def check_masked_vectors(self) -> None:
        for name in self.survivors:
            stream = bytes.fromhex(self.silos[name]["masked"])
            for bits, inputs in sorted(self.tagged_input(name).items()):
                seeds = [(self.secret(name, "self_mask_seed"), 1)]
                for peer in self.sharers:
                    if peer != name:
                        low, high = sorted((name, peer))
                        seeds.append((self.pair_seed(low, high), 1 if name == low else -1))
                masked = self.apply(inputs, bits, seeds)
                size = len(masked) * bits // 8
                expect(f"masked vector of {name}", masked, little_endian(stream[:size], bits))
                stream = stream[size:]
            expect(f"rest of the stream of {name}", stream, b"")

    def check_consistency(self) -> None:
        for name in self.survivors:
            signed = encode("consistency", self.cohort_digest, name, self.sharers, self.survivors)
            self.verify(name, "consistency", signed, bytes.fromhex(self.silos[name]["consistency"]))

    def check_answers(self) -> None:
        for name in self.survivors:
            answer = self.silos[name]["answer"]
            own = bytes.fromhex(answer["self_mask_shares"][name])
            self.shares["self-mask", name, name] = own
            fields = self.open(name, "dealing", self.silos[name]["dealing"])
            expect(f"own share of {name}", fields[2], digest("self-mask-share-hash", name, name, own))
            for label, dealers in (("self-mask", self.survivors), ("recovery", self.lost)):
                given = answer[f"{label.replace('-', '_')}_shares"]
                held = {dealer: self.shares[label, dealer, name].hex() for dealer in dealers}
                expect(f"{label} shares of {name}", given, held)
        for name in self.survivors:
            self.check_secret("self-mask", name, self.secret(name, "self_mask_seed"))

    def check_sum(self) -> None:
        for ring_bits, recorded in self.vector["sum"].items():
            bits = int(ring_bits)
            inputs = [self.tagged_input(name)[bits] for name in self.survivors]
            total = [sum(column) % 2**bits for column in zip(*inputs, strict=True)]
            expect(f"sum of {ring_bits}-bit words", [str(each) for each in total], recorded)

    def check_verified_sum(self) -> None:
        expect("sum key", self.sum_key(), bytes.fromhex(self.vector["sum_key"]))
        terms, commitments = self.terms, []
        for name in self.sharers:
            seed = self.secret(name, "self_mask_seed")
            commitments.append([name, digest("self-mask-commitment", name, seed)])
        kept = [
            terms["federation"],
            bytes.fromhex(terms["job_digest"]),
            terms["round"],
            terms["phase"],
            terms["attempt"],
            bytes.fromhex(self.vector["session_digest"]),
            bytes.fromhex(self.vector["layout_digest"]),
            bytes.fromhex(terms["state_digest"]),
            terms["threshold"],
            terms["members"],
            self.cohort_digest,
            self.survivors[0],
            self.sharers,
            [[name, self.certificates[name].public_bytes(Encoding.DER)] for name in self.sharers],
            commitments,
            self.sum_key(),
        ]
        expect("sum check", decode("sum-check", bytes.fromhex(self.vector["sum_check"])), kept)
        total = {int(ring_bits): [int(each) for each in row] for ring_bits, row in self.vector["sum"].items()}
        stream = b"".join(
            word.to_bytes(bits // 8, "little")
            for bits, words in self.tagged_words(total).items()
            for word in words
        )
        stream += b"".join(word.to_bytes(8, "little") for word in total[64][-TAG_WORDS:])
        expect("tagged sum", stream, bytes.fromhex(self.vector["tagged_sum"]))
        expect("verdict on the sum", self.is_true(stream), True)
        for row in self.vector["refused"]:
            expect(f"verdict on a {row['failure']}", self.is_true(bytes.fromhex(row["tagged_sum"])), False)
        expect("number of refused sums", len(self.vector["refused"]), 4)

    def is_true(self, stream: bytes) -> bool:
        """Whether a silo takes this as the tagged part of the sum over U3."""
        sizes: dict[int, int] = {}
        for quantity in self.vector["quantities"]:
            if quantity["is_tagged"]:
                sizes[quantity["word"]] = sizes.get(quantity["word"], 0) + math.prod(quantity["shape"])
        words: dict[int, list[int]] = {}
        for bits, size in sorted(sizes.items()):
            words[bits] = little_endian(stream[: size * bits // 8], bits)
            stream = stream[size * bits // 8 :]
        if any(abs(signed(word, 64)) >= 2**47 for word in words.get(64, [])):
            return False
        products = self.products(words)
        offsets = [self.offsets(name) for name in self.survivors]
        expected = [sum(each) % 2**64 for each in zip(products, *offsets, strict=True)]
        return little_endian(stream, 64) == expected

    def sum_key(self) -> bytes:
        keys = b"".join(self.secret(name, "sum_key") for name in self.sharers)
        return hkdf(keys, encode("cohort-sum-key", self.cohort_digest, self.sharers))

    def tagged_input(self, name: str) -> dict[int, list[int]]:
        """By word size, what the silo masks: its input and at the end its tags."""
        words = {
            int(ring_bits): [int(each) for each in row]
            for ring_bits, row in self.silos[name]["input"].items()
        }
        products = self.products(self.tagged_words(words))
        tags = [sum(each) % 2**64 for each in zip(products, self.offsets(name), strict=True)]
        return words | {64: words[64][:-TAG_WORDS] + tags}

    def tagged_words(self, words: dict[int, list[int]]) -> dict[int, list[int]]:
        tagged: dict[int, list[int]] = {}
        places = dict.fromkeys((16, 32, 64), 0)
        for quantity in self.vector["quantities"]:
            bits, size = quantity["word"], math.prod(quantity["shape"])
            if quantity["is_tagged"]:
                tagged.setdefault(bits, []).extend(words[bits][places[bits] : places[bits] + size])
            places[bits] += size
        return dict(sorted(tagged.items()))

    def products(self, words: dict[int, list[int]]) -> list[int]:
        """<a_j, x> for j = 1 to 4."""
        extended = [signed(word, bits) for bits in sorted(words) for word in words[bits]]
        wide = [signed(word, 64) for word in words.get(64, [])]
        products = []
        for number, over in enumerate([extended, extended, wide, wide], start=1):
            key = hkdf(self.sum_key(), encode("tag-factors", number))
            factors = little_endian(aes_ctr(key, 0, 8 * len(over)), 64)
            products.append(sum(a * x for a, x in zip(factors, over, strict=True)) % 2**64)
        return products

    def offsets(self, name: str) -> list[int]:
        return little_endian(aes_ctr(hkdf(self.sum_key(), encode("tag-offset", name)), 0, 8 * TAG_WORDS), 64)

    def check_secret(self, label: str, dealer: str, secret: bytes) -> None:
        """Every t of the shares that others hold rebuild it."""
        held = {
            self.x[who]: share
            for (kind, by, who), share in self.shares.items()
            if (kind, by) == (label, dealer)
        }
        for chosen in itertools.combinations(held, self.terms["threshold"]):
            points = {x: share_number(held[x]) for x in chosen}
            expect(f"{label} seed of {dealer}", recover(points), secret)

    def mask_key(self, name: str) -> tuple[bytes, MLKEM768X25519PrivateKey]:
        return key_pair(hkdf(self.secret(name, "recovery_seed"), encode("mask-key")))

    def pair_seed(self, low: str, high: str) -> bytes:
        return hkdf(self.secret(low, "recovery_seed"), encode("pair-seed", self.cohort_digest, high))

    def apply(self, words: list[int], bits: int, seeds: list[tuple[bytes, int]]) -> list[int]:
        for seed, sign in seeds:
            stream = aes_ctr(prg_key(seed, self.cohort_digest, bits), 0, len(words) * bits // 8)
            mask = little_endian(stream, bits)
            words = [(ring_bits + sign * each) % 2**bits for ring_bits, each in zip(words, mask, strict=True)]
        return words

    def open(self, name: str, purpose: str, made: Any) -> list[Any]:
        body = bytes.fromhex(made["body"])
        self.verify(name, purpose, body, bytes.fromhex(made["signature"]))
        return decode(purpose, body)

    def verify(self, name: str, purpose: str, body: bytes, signature: bytes) -> None:
        key = self.certificates[name].public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        try:
            key.verify(signature, body, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            raise Disagreement(f"{purpose} of {name}: the signature is not valid") from None


def signed(word: int, bits: int) -> int:
    """Two's complement."""
    return word - 2**bits if word >= 2 ** (bits - 1) else word
