"""The report: records and environments in, HTML, Markdown, terminal tables and pictures out."""
