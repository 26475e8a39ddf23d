"""Sections about causes: what is different about the slow requests, what regressed, what was changed."""

from __future__ import annotations

from tailspan_queries import different_view, optimizations_words, regress_view, units
from tailspan_queries.compare_findings import title as title_of
from tailspan_queries.optimizations_records import Account, Effect
from tailspan_queries.report.answers import Answers
from tailspan_queries.report.palette import stage_class
from tailspan_queries.report.parts import (
    Cell,
    Section,
    Table,
    command,
    exact,
    number,
    sample_parameters,
    sentence,
    share,
    table,
    time,
    words,
)
from tailspan_queries.times import clock

FINDINGS, EFFECTS, VERSIONS = 10, 50, 50


def different_section(answers: Answers) -> Section:
    """Say what is over-represented among the slow requests."""
    report = answers.different
    rows = [
        [
            words(found.name),
            share(found.slow_share_ratio),
            share(found.share_ratio),
            Cell(f"{units.significant(found.times)} x", exact(found.times)),
            Cell(f"{units.significant(found.times_low)} x", exact(found.times_low)),
            words(found.stage, stage_class(found.stage)),
            time(found.stage_extra_ns),
        ]
        for found in report.findings
    ]
    columns = ("group", "of slow", "of all", "likelier to be slow", "at least", "slow in", "longer by")
    return Section(
        "different",
        "What is different about the slow ones",
        sentence(different_view.diagnose(report)),
        tables=(table("Groups over-represented among the slowest 1 %", columns, rows, FINDINGS),) if rows else (),
        notes=tuple(different_view.cautions(report, len(report.findings))),
        commands=(command("different", answers.window, answers.filters),),
    )


def regression_section(answers: Answers) -> Section:
    """Say what got slower than on the days before."""
    report = answers.regression
    title = "Against the days before"
    if report is None:
        nothing = "There is nothing to hold it against: no requests at these hours of the 7 previous days"
        return Section("regression", title, f"{nothing}, or the window is longer than a day.")
    told = regress_view.alarms(report)
    rows = [
        [
            words(title_of(found.line.part), stage_class(found.line.part)),
            words(found.line.statistic),
            time(found.line.adjusted_ns),
            time(found.line.after_ns),
            share(found.line.change_ratio),
            words(regress_view.interval(found.line)),
            words(regress_view.verdict(found)),
        ]
        for found in report.findings
        if found.line.adjusted_ns or found.line.after_ns
    ]
    columns = ("stage", "", "baseline", "window", "change", "95 % interval", "")
    return Section(
        "regression",
        title,
        sentence("; ".join(told) + "." if told else regress_view.nothing(report) + "."),
        tables=(table("Same hours of previous days, same mix of lengths", columns, rows),) if rows else (),
        notes=report.comparison.cautions,
        commands=(command("regress", answers.window, answers.filters),),
    )


def changes_section(answers: Answers) -> Section:
    """Show versions and what optimisations brought."""
    tables: list[Table] = []
    answer = f"No {answers.attribute} is known of the requests, and the ledger of optimisations is empty."
    if answers.versions:
        tables.append(versions_table(answers))
        answer = f"{len(answers.versions)} version{'s' if len(answers.versions) > 1 else ''} answered."
    accounts = answers.ledger.accounts
    tables += [effects_table(account) for account in accounts]
    if accounts:
        said = " ".join(sentence(f"{optimizations_words.headline(account)}.") for account in accounts).replace(
            "->", "→"
        )
        answer = f"{answer} {said}" if answers.versions else said
    sample = answers.latency.sample
    asked = f"query versions --param attribute={answers.attribute}{sample_parameters(sample)}"
    part = f"versions are those of {sample.text}: first and last are near, one with few requests may lack"
    return Section(
        "changes",
        "What was changed, and what it brought",
        answer,
        tables=tuple(tables),
        notes=(
            *([] if sample.whole or not answers.versions else [part]),
            *(line for account in accounts for line in (optimizations_words.remainder(account), *account.cautions)),
        ),
        commands=(
            command(asked, answers.window, answers.filters),
            command("optimizations report", None, answers.filters),
        ),
    )


def versions_table(answers: Answers) -> Table:
    """Return a line for each version."""
    rows = [
        [
            words(row.service),
            words(row.version),
            number(row.requests),
            Cell(clock(row.first_start_ns), exact(row.first_start_ns), "ns since 1970"),
            Cell(clock(row.last_start_ns), exact(row.last_start_ns), "ns since 1970"),
        ]
        for row in answers.versions
    ]
    columns = ("service", answers.attribute, "requests", "first (UTC)", "last (UTC)")
    return table("Versions", columns, rows, VERSIONS)


def effects_table(account: Account) -> Table:
    """Return a line for each optimisation of an account, and the total."""
    rows = [effect_row(account, effect) for effect in account.effects]
    if account.total_origin != "nothing":
        before, after = account.total_before_ns, account.total_after_ns
        total = (time(before), time(after), share(account.improvement_ratio), time(account.change_ns))
        rows.append(
            [
                words("whole request"),
                words(""),
                *total,
                share(1.0) if account.change_ns else Cell(units.ABSENT),
                words(""),
            ]
        )
    columns = ("optimisation", "about", "before", "after", "better", "saves a request", "of total", "cost")
    return table(f"Optimisations: {account.title}", columns, rows, EFFECTS)


def effect_row(account: Account, effect: Effect) -> list[Cell]:
    """Return the cells of one optimisation."""
    item = effect.optimization
    cost = words(optimizations_words.cost_text(item.cost))
    name = item.name + (" (claim)" if effect.origin == "claim" else "")
    if effect.origin == "nothing":
        return [words(name), words(item.place), *[Cell(units.ABSENT)] * 4, words(effect.why), cost]
    low, high = effect.gain_ns
    contribution = account.share(low)
    ranged = low != high
    return [
        words(name),
        words(item.place),
        time(effect.before_ns),
        time(effect.after_ns),
        share(effect.improvement_ratio),
        words(optimizations_words.range_text(effect.gain_ns)) if ranged else time(low),
        words(optimizations_words.share_text(account, effect.gain_ns)) if ranged else share(contribution),
        cost,
    ]
