"""A comparison in the forms that CI services read: JUnit, Markdown, annotations."""
