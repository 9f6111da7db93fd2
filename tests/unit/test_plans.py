# SPDX-License-Identifier: BSD-3-Clause
"""The text of plans: the accepted texts, and refusals with the line and the reason."""

from __future__ import annotations

import pytest

from torch_outboard import _C

GOOD = """plan 1
value size 0 0
value stride 0 1
value element 3 1
value number 3
guard a0 64 ge a1 0 ne and
number 3 float32
allocate float32 [a0, 4] [4, 1]
view b1 [4, a0] [1, 4] 0
view t0 float32 [a0] [2] 1
launch 0 [t0, b0, b1, a0 4 mul]
repeat a0 1 add
launch 0 [t0, b0, b1, turn]
launch 0 [t0, b0, b1, 7]
end
call 1 aten::mm [b1, b2]
call 0 aten::f [b4, none, true, real -0x1.8p+1, real inf, a0, numbers 1; a0 2 add, tensors t0; b1]
seed
copy t1 b4
free b2
return b1
return none
return [b1, b4]
return number a0 2 mul
"""


def test_a_plan_is_read() -> None:
    assert _C.check_plan(GOOD, ["rrwi"]) == 13
    assert _C.check_plan("plan 1\nallocate bool [] []\nreturn b0\n", []) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text is empty"),
        ("plan 2", "line 1 of a plan: a plan begins with 'plan 1'"),
        ("plan 1\nvalue size 0 64", "line 2 of a plan: '64' is not a number from 0 to 63"),
        ("plan 1\nvalue length 0 1", "'length' is not a size, stride, number or element"),
        ("plan 1\nvalue offset 0", "'offset' is not a size, stride, number or element"),
        ("plan 1\nvalue element 3", "a word is missing at the end"),
        ("plan 1\nguard a0 1 eq", "line 2 of a plan: the formula 'a0 1 eq' reads a0, but there are 0 values"),
        ("plan 1\nguard 1 1 like", "line 2 of a plan: the formula '1 1 like' has the word 'like'"),
        ("plan 1\nallocate float32 [2] [1]\nguard 1", "guards must come before the steps"),
        ("plan 1\nallocate float32 [2] [1]\nvalue number 0", "values must come before guards, steps and returns"),
        ("plan 1\nallocate float33 [2] [1]", "'float33' is not a dtype"),
        ("plan 1\nallocate float32 [2, 3] [1]", "there are 2 sizes and 1 strides"),
        ("plan 1\nallocate float32 [2 [1]", "formula '2 \\[1' has the word"),
        ("plan 1\nallocate float32 [2,] [1]", "a list has an empty item"),
        ("plan 1\nallocate float32", "a list in brackets is missing"),
        ("plan 1\nallocate float32 [2] [1] 3", "' 3' is unexpected"),
        ("plan 1\nview b0 [1] [1] 0", "there is no buffer b0 here"),
        ("plan 1\nview t0 float33 [1] [1] 0", "'float33' is not a dtype"),
        ("plan 1\nallocate float32 [2] [1]\nfree b0\ncopy t0 b0", "line 4 of a plan: there is no buffer b0 here"),
        ("plan 1\nlaunch 1 []", "there are only 1 kernels"),
        ("plan 1\nlaunch 0 [t0]", "the kernel takes 2 arguments, not 1"),
        ("plan 1\nlaunch 0 [3, 4]", "'3' is not a tensor"),
        ("plan 1\nlaunch 0 [t0, t1]", "the formula 't1' has the word 't1'"),
        ("plan 1\nlaunch 0 [t0, turn]", "the formula 'turn' has the word 'turn'"),
        ("plan 1\nrepeat 3\nlaunch 0 [turn, 1]", "'turn' is not a tensor"),
        ("plan 1\nrepeat 3\nlaunch 0 [t0, turn]", "a 'repeat' has no 'end'"),
        ("plan 1\nrepeat 3\nrepeat 3", "line 3 of a plan: only launches can be repeated"),
        ("plan 1\nrepeat 3\nfree b0", "line 3 of a plan: only launches can be repeated"),
        ("plan 1\nend", "there is no 'repeat' before this 'end'"),
        ("plan 1\nrepeat", "formula"),
        ("plan 1\ncall 1 mm [t0]", "'mm' is not an operator"),
        ("plan 1\ncall 1 aten::mm [real 1.5]", "a real number must be hexadecimal"),
        ("plan 1\ncopy b0 t0", "there is no buffer b0"),
        ("plan 1\nfree t0", "a plan cannot free a tensor of the call"),
        ("plan 1\nreturn t0", "a plan returns buffers only"),
        ("plan 1\nreturn number a0", "line 2 of a plan: the formula 'a0' reads a0, but there are 0 values"),
        ("plan 1\nreturn none\nfree b0", "steps must come before returns"),
        ("plan 1\nrun", "there is no step 'run'"),
        ("plan 1\n\n", "a word is missing at the end"),
        ("plan 1\n" + "x" * (1 << 20), "longer than 1048576 bytes"),
        ("plan 1\n" + "return none\n" * 10000, "more than 10000 lines"),
    ],
)
def test_what_is_no_plan_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _C.check_plan(text, ["ri"])


def test_a_kernel_with_real_numbers_takes_none_of_a_plan() -> None:
    with pytest.raises(ValueError, match="argument 1 of the kernel is not an integer"):
        _C.check_plan("plan 1\nlaunch 0 [t0, 1]", ["rf"])
