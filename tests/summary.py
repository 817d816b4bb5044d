"""Counts the test cases of one `bazel test` from its build events: prints "PASSED FAILED".

A target that failed without a failed case (it crashed, ran out of time or did not build) counts as one failed, and so
does a build without any test. Failed and skipped cases are named on standard error.
"""

import json
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree


def cases(path):
    """Yields (name, outcome) for each test case of a test.xml."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = "%s.%s" % (case.get("classname") or "", case.get("name") or "")
        if case.find("failure") is not None or case.find("error") is not None:
            yield name.strip("."), "failed"
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            yield name.strip("."), "skipped"
        else:
            yield name.strip("."), "passed"


def main(events):
    summaries, outputs, broken = {}, {}, []
    with open(events, encoding="utf-8") as lines:
        for line in lines:
            event = json.loads(line)
            ident = event["id"]
            if "testSummary" in ident:
                summaries[ident["testSummary"]["label"]] = event["testSummary"]["overallStatus"]
            elif "testResult" in ident:
                for out in event.get("testResult", {}).get("testActionOutput", []):
                    if out["name"] == "test.xml":
                        path = urllib.parse.unquote(urllib.parse.urlparse(out["uri"]).path)
                        outputs.setdefault(ident["testResult"]["label"], {})[ident["testResult"]["shard"]] = path
            elif "targetCompleted" in ident and not event.get("completed", {}).get("success"):
                if not event.get("aborted", {}).get("reason") == "SKIPPED":
                    broken.append(ident["targetCompleted"]["label"])

    passed, failed, skipped = 0, [], []
    for label, status in sorted(summaries.items()):
        wrong = 0
        for path in outputs.get(label, {}).values():
            try:
                found = list(cases(path))
            except (OSError, ElementTree.ParseError):
                continue
            for name, outcome in found:
                passed += outcome == "passed"
                wrong += outcome == "failed"
                if outcome != "passed":
                    (failed if outcome == "failed" else skipped).append("%s %s" % (label, name))
        if status not in ("PASSED", "FLAKY") and wrong == 0:
            failed.append("%s (%s)" % (label, status.lower().replace("_", " ")))
    failed += ["%s (did not build)" % label for label in broken if label not in summaries]
    if not summaries and not failed:
        failed.append("no test was run")

    for line in skipped:
        print("SKIPPED " + line, file=sys.stderr)
    for line in failed:
        print("FAILED  " + line, file=sys.stderr)
    print(passed, len(failed))


if __name__ == "__main__":
    main(sys.argv[1])
