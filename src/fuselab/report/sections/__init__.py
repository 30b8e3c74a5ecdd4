"""Parts of what a report shows: headline, tables of times, details, counters, who is fastest."""
