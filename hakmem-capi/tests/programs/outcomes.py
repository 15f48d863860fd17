"""Runs modules of Python's own test suite and writes outcomes.txt: a line per test, its name and how it ended, sorted.

What a failed test says goes to stderr. The exit status is always 0: two runs are compared, and a test that the machine
itself does not allow (a sandbox, say) fails in both.
"""
import os
import sys
import test.support
import unittest


class Outcomes(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.ended = {}

    def note(self, test, how, why=None):
        # Subtests and class-wide failures come before addSuccess would; the worst outcome stays.
        if self.ended.get(test.id(), "ok") == "ok":
            self.ended[test.id()] = how
        if why:
            print(f"{test.id()}: {how}\n{why}", file=sys.stderr)

    def addSuccess(self, test):
        self.note(test, "ok")

    def addFailure(self, test, err):
        self.note(test, "FAIL", self._exc_info_to_string(err, test))

    def addError(self, test, err):
        self.note(test, "ERROR", self._exc_info_to_string(err, test))

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.note(test, "FAIL", self._exc_info_to_string(err, test))

    def addSkip(self, test, reason):
        self.note(test, "skipped: " + reason)

    def addExpectedFailure(self, test, err):
        self.note(test, "expected failure")

    def addUnexpectedSuccess(self, test):
        self.note(test, "UNEXPECTED SUCCESS")


if __name__ == "__main__":
    test.support.verbose = False
    where = os.path.abspath("outcomes.txt")
    result = Outcomes()
    unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:]).run(result)
    with open(where, "w") as out:
        out.writelines(f"{name} ... {result.ended[name]}\n" for name in sorted(result.ended))
