"""Made-up traffic of many requests, from real arrivals, with planted truths that the commands must find or ignore.

The way of the data, file by file: `arrivals` reads the real traces; `fleet` says which services replay them; `truths`
says what is planted; `times` makes the stages' times from arrivals and lengths; `requests` joins all of that into one
record a request; `effects` notes what a plant did in fact; `rows` turns records into the spans that the collector would
have stored, inside ClickHouse; `dataset` keeps the result outside of the checkout.
"""
