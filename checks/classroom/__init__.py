"""A class: many submissions, each graded in a process of its own."""
