"""The Docker Engine over its SDK: containers, images, dump volumes; the one place that speaks to one."""
