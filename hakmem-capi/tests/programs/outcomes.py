"""Runs modules of Python's own test suite and writes outcomes.txt: a line per test, its name and how it ended, sorted.

What a failed test says goes to stderr. The exit status is always 0: two runs are compared, and a test that the machine
itself does not allow (a sandbox, say) fails in both.
"""
import os
import sys
import test.support
import unittest

# These assert how long something takes, which a busy machine decides; none is about memory.
TIMED = {
    "BarrierTests": ["test_default_timeout", "test_timeout", "test_repr"],
    "BoundedSemaphoreTests": ["test_acquire_timeout"],
    "SemaphoreTests": ["test_acquire_timeout"],
    "ConditionTests": ["test_timeout", "test_waitfor_timeout"],
    "ConditionAsRLockTests": ["test_timeout"],
    "LockTests": ["test_timeout"],
    "CRLockTests": ["test_timeout"],
    "PyRLockTests": ["test_timeout"],
    "EventTests": ["test_timeout", "test_set_and_clear"],
    "ProcessTestCase": ["test_wait_timeout", "test_check_output_timeout"],
    "ProcessTestCaseNoPoll": ["test_wait_timeout", "test_check_output_timeout"],
    "POSIXProcessTestCase": ["test_leak_fast_process_del_killed", "test_zombie_fast_process_del"],
    "RunFuncTestCase": [
        "test_timeout", "test_check_output_timeout", "test_run_with_shell_timeout_and_capture_output",
    ],
    "UtimeTests": ["test_utime_current", "test_utime_current_old"],
}


def is_timed(test):
    name, method = ("..." + test.id()).split(".")[-2:]
    return method in TIMED.get(name, [])


def untimed(suite):
    """The tests of a suite, however deep, but for those above."""
    tests = [untimed(test) if isinstance(test, unittest.TestSuite) else test for test in suite]
    return unittest.TestSuite(test for test in tests if isinstance(test, unittest.TestSuite) or not is_timed(test))


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
    untimed(unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:])).run(result)
    with open(where, "w") as out:
        out.writelines(f"{name} ... {result.ended[name]}\n" for name in sorted(result.ended))
