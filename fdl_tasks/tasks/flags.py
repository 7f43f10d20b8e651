"""Help for the flags that several tasks take."""

CLUSTER = "cluster.yml to use; default: FDL_CLUSTER, then the nearest one from here upwards"
HOST = "label of a worker, or a group of cluster.yml; may be given several times; default: every worker"
WIDTH = "hosts spoken to at once (default 16)"
JSON = "print one JSON object instead of the table"
SHARED = "write a file here and look for it on every worker: is its path the shared mount?"
