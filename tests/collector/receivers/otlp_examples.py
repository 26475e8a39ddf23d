"""Export requests in JSON after the examples of opentelemetry-proto (`examples/*.json`)."""

from __future__ import annotations

TRACE_ID, SPAN_ID = "5B8EFFF798038103D269B633813FC60C", "EEE19B7EC3C1B174"

EXAMPLES = {
    "traces": {
        "resourceSpans": [
            {
                "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "my.service"}}]},
                "scopeSpans": [
                    {
                        "scope": {"name": "my.scope", "version": "1.0.0", "attributes": []},
                        "spans": [
                            {
                                "traceId": TRACE_ID,
                                "spanId": SPAN_ID,
                                "parentSpanId": "EEE19B7EC3C1B173",
                                "flags": 1,
                                "name": "I'm a server span",
                                "startTimeUnixNano": "1544712660000000000",
                                "endTimeUnixNano": "1544712661000000000",
                                "kind": 2,
                                "events": [{"timeUnixNano": "1544712660500000000", "name": "e"}],
                                "status": {"code": 2, "message": "no"},
                            }
                        ],
                    }
                ],
            }
        ]
    },
    "metrics": {
        "resourceMetrics": [
            {
                "scopeMetrics": [
                    {
                        "metrics": [
                            {
                                "name": "my.histogram",
                                "unit": "1",
                                "histogram": {
                                    "aggregationTemporality": 1,
                                    "dataPoints": [
                                        {
                                            "startTimeUnixNano": "1544712660300000000",
                                            "timeUnixNano": "1544712660300000001",
                                            "count": "2",
                                            "sum": 2,
                                            "bucketCounts": ["1", 1],
                                            "explicitBounds": [1],
                                            "min": 0,
                                            "max": 2.5,
                                            "exemplars": [{"asInt": "3", "traceId": TRACE_ID, "spanId": SPAN_ID}],
                                        }
                                    ],
                                },
                            }
                        ]
                    }
                ]
            }
        ]
    },
    "logs": {
        "resourceLogs": [
            {
                "scopeLogs": [
                    {
                        "logRecords": [
                            {
                                "timeUnixNano": "1544712660300000000",
                                "severityNumber": 10,
                                "severityText": "Information",
                                "traceId": TRACE_ID,
                                "spanId": SPAN_ID,
                                "body": {"stringValue": "Example log record"},
                            }
                        ]
                    }
                ]
            }
        ]
    },
}
