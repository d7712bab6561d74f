"""What each data format reads: one file a format. A new one also stands in `DataFormat` (../settings.py),
`LOADERS` (../loading.py) and `RECORDS` (../records.py).
"""
