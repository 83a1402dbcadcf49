"""What `actplan validate` prints of the records that ship with it, as a part of docs/validation.md.

`python docs/validated.py` writes it between `<!-- validated -->` and `<!-- end of validated -->`. With `--check` it
exits with 1 where the page is out of date. The package must be importable.
"""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path

from actplan.cli.main import run

PAGE = Path(__file__).parent / "validation.md"
PART = re.compile(r"(<!-- validated -->\n).*?(<!-- end of validated -->)", flags=re.DOTALL)


def page() -> str:
    """Return the page as it must be."""
    out = io.StringIO()
    with redirect_stdout(out):
        code = run(["validate", "--format", "markdown"])
    if code:
        raise SystemExit(code)
    text = out.getvalue()
    return PART.sub(lambda found: f"{found[1]}{text}{found[2]}", PAGE.read_text(encoding="utf-8"))


def main() -> int:
    """Write the page, or check it."""
    made = page()
    same = made == PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        print("up to date" if same else f"out of date: {PAGE.name}; run: python docs/validated.py")
        return 0 if same else 1
    if not same:
        PAGE.write_text(made, encoding="utf-8")
    print(f"{'unchanged' if same else 'written'}: {PAGE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
