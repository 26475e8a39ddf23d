"""The errors that reach a user.

UserError          bad input or environment: exit code 2, one line
"""

from __future__ import annotations


class UserError(Exception):
    """Something the user can mend: what is wrong, and what to do next.

    Printed as one line, `tailspan: error: WHAT. REMEDY`, with exit code 2; never as a traceback.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}. {remedy}")
        self.what = what
        self.remedy = remedy
