"""Hypothesis strategies for selector expressions."""

from hypothesis import strategies as st

from gpupolicy.adapters.cel.declarations import Environment
from tests.unit.cel.expressions import Generator


@st.composite
def expressions(draw: st.DrawFn, environment: Environment, *, wrong: int = 40) -> str:
    """Expressions that mostly compile in an environment."""
    depth = draw(st.integers(1, 4))
    return Generator(lambda options: draw(st.sampled_from(options)), environment, wrong=wrong).expression(
        depth
    )


_NOISE = [
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ".",
    ",",
    "?",
    ":",
    "&&",
    "||",
    "!",
    "-",
    "'",
    '"',
    "\\",
    "//",
    "`",
    "1",
    "u",
    " in ",
]


@st.composite
def damaged_expressions(draw: st.DrawFn, environment: Environment) -> str:
    """Expressions with a piece lost, doubled or put in: mostly syntax errors."""
    text = draw(expressions(environment))
    for _ in range(draw(st.integers(1, 2))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 3)))
        text = text[:start] + draw(st.sampled_from([*_NOISE, "", text[start:end] * 2])) + text[end:]
    return text
