"""`kubectl joinery`: a thin layer over kubectl, so that it works with whatever kubectl is set up for.

It needs no engine. What looks into a job's state runs in the job's driver pod, which has the secrets.
"""
