"""What ``bench.py`` measures: a module a question, and the page that shows the answers."""
