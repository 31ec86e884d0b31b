"""Published figures before and after a technique, and which of their sources are kept apart."""

import hashlib

HELD_SHARE = 3  # one source in so many is held out


def held_out(source: str) -> bool:
    """Whether figures of a source were not looked at while techniques were modelled: its SHA-256 is in the lowest third.

    >>> held_out("https://github.com/vllm-project/vllm/pull/39080"), held_out("https://github.com/vllm-project/vllm/pull/19744")
    (True, False)
    """
    return int(hashlib.sha256(source.encode()).hexdigest(), 16) * HELD_SHARE < 2**256
