"""The four hospitals of docs/examples/heart-disease: methods against training alone and on pooled records.

`python -m research.heart_disease` trains each with its rate chosen on validation records, on ten splits of
each hospital's file, and prints the tables of docs/heart-disease.md.
"""
