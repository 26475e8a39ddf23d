"""Reading side of tailspan: one `.sql` file a question, and the reports and commands that run them.

In: the ClickHouse that the collector fills. Out: tables, JSON, CSV, and the records of `tailspan_queries.reports`.
"""
