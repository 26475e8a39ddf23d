"""Which colour class a stage has; the style sheet says which colours these are.

Known stages have a class each. Stages of a user's own spans share three more, by their place in the report.
Source: colours of Okabe and Ito (2008) and of Paul Tol's `muted` scheme, told apart with any kind of colour blindness.
"""

from __future__ import annotations

from tailspan import attributes
from tailspan_queries.records import REQUEST

KNOWN = (*attributes.STAGES, attributes.UNATTRIBUTED, REQUEST)
OTHERS = 3


def stage_class(stage: str) -> str:
    """Return the class of a stage, never made of text that came from outside."""
    if stage in KNOWN:
        return f"k-{stage}"
    return f"k-other{sum(stage.encode()) % OTHERS}"
