"""`kubectl joinery`: a thin layer over kubectl, so that it works with whatever kubectl is set up for.

It needs no engine. Commands on a job's state run in the job's driver pod, which has the secrets, or in a pod of their
own where no driver runs.
"""
