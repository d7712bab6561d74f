"""What a silo's own rules refuse: the sentence, the code and the rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from crypto.errors import PolicyRefusal, Refusal


def refused(words: str, act: Callable[[], object], code: Refusal = Refusal.POLICY) -> PolicyRefusal:
    with pytest.raises(PolicyRefusal, match=words) as caught:
        act()
    assert caught.value.code is code
    return caught.value
