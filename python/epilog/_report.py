"""What was done with a model, and what was not."""
import re

OFF = "as you asked"


class Report:
    """What was replaced, and what was left alone and why: names of modules, in lists."""

    def __init__(self):
        self.replaced, self.left = [], []

    def __str__(self):
        return "\n".join([*told("replaced", self.replaced), *told("left alone", self.left)])


def told(what, found):
    """A line for each; one for all modules that differ in one number alone, as layers do, and of which the same is said."""
    alike = {}
    for name, why in found:
        words = re.split(r"\b(\d+)\b", name, maxsplit=1)
        alike.setdefault((words[0], words[-1] if len(words) > 1 else None, why), []).append(words[1] if len(words) > 1 else "")
    for (before, behind, why), numbers in alike.items():
        count = f"{{{numbers[0]}, … {numbers[-1]}}}" if len(numbers) > 2 else f"{{{', '.join(numbers)}}}" if len(numbers) == 2 else numbers[0]
        yield f"{what} {before}{count}{behind or ''}: {why}"
