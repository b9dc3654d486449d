"""Reports for people: text, tables and charts, as Markdown and as HTML."""
