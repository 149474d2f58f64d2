"""A job that tests of drivers run or only read: sessions of a file of clicks, into files."""

from __future__ import annotations

JOB = """
apiVersion: joinery.dev/v1alpha1
kind: SessionWindow
metadata: {name: visits}
spec:
  input:
    name: clicks
    file: {path: clicks.jsonl}
    format: json
    schema: [{name: user, type: string}, {name: ts, type: timestamp}]
    eventTime: ts
  groupBy: [user]
  gap: 30s
  maxDuration: 1h
  output: {file: {path: out}}
"""
