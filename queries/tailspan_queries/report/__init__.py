"""`tailspan report`: one self-contained HTML page with the answers of the other commands, drawn.

`gather` asks the report functions of the commands, `sections` and its neighbours turn what they say into figures and
tables, `page` fills the template. No number is computed here that a command does not print.
"""
