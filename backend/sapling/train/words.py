"""Word pools. Every list is cut in two by a fixed rule: even places train, and
one in five goes to the held-out half, so that no name of the test was seen."""

APP = """payment checkout cart order invoice ledger billing refund catalog search
inventory shipping tracking courier customer profile account login session token
auth gateway proxy router frontend backend web api mobile admin portal dashboard
report metrics logs trace alert notifier mailer sms push webhook queue broker stream
event audit archive backup restore export import loader parser indexer crawler
scraper ranker recommender scoring fraud risk pricing quote discount coupon loyalty
reward gift wallet bank card credit debit transfer exchange currency tax fee
subscription renewal trial license quota limiter cache redis postgres mysql mongo
kafka rabbit nats etcd consul vault zookeeper elastic kibana grafana prometheus loki
tempo jaeger fluent vector collector agent operator controller scheduler worker
runner executor dispatcher balancer ingress egress dns resolver registry builder
deploy release config feature flag experiment image video audio media thumb upload
download storage bucket volume disk snapshot sync replica shard primary reader writer
consumer producer bridge adapter connector relay hub edge node core base main data
batch cron nightly hourly daily cleanup purge compactor migrator seeder validator
checker health monitor probe chat message inbox forum comment review rating survey
form booking hotel flight ticket seat room calendar meeting geo map route driver
fleet vehicle sensor device telemetry iot meter energy weather price stock trade
market broker2 quant model train infer embed vision speech text lang translate
summary graph rules policy consent privacy legal contract document pdf render
template print label barcode scan vendor supplier partner merchant store shop
warehouse picker packer returns claims policyholder patient clinic lab student
course grade library tutor game lobby match leaderboard avatar friend feed story
timeline follow share social ads campaign bidder pixel click tag segment audience""".split()

NAMESPACE = """default prod production staging payments orders shop platform infra
kube-system monitoring logging data ml team-a team-b web backend edge core finance
search media billing identity sre tools ops dev qa apps services batch jobs""".split()

NODE = """worker node pool gke-prod aks-general eks-main ip-10-0 ip-172-31 kube
compute metal rack host vm k8s-node general spot gpu infra edge""".split()

REGISTRY = """registry.local ghcr.example docker.example.com registry.internal:5000
harbor.corp images.example.net quay.example cr.acme.dev hub.internal""".split()

TEAM = """payments platform storage search network database identity release
capacity runtime mobile data security frontend billing edge messaging build""".split()

PERSON_GREETING = """hey hi hello folks team fyi help ugh please yo ok""".split()

NOUN = """memory limit heap pod node deployment image tag registry secret config
probe volume queue replica rollout revision service cluster zone quota cache lease
certificate backlog thread connection pool dashboard ticket channel page shift owner
release build commit branch manifest container process kernel disk network route
firewall gateway balancer listener session token key map table index snapshot backup
archive window budget threshold report review meeting note incident timeline summary
customer request response header timeout retry batch job worker leader follower shard
partition topic offset consumer producer stream event metric trace log sample profile
baseline change freeze flag switch drain cordon taint label selector scheduler
kubelet runtime agent operator chart values template policy role account bucket""".split()

ADJ = """old new last next stale spare second first small large quiet noisy busy idle
shared local remote broken healthy slow fast primary standby nightly weekly manual
automatic pending open closed current previous known unknown cold warm full empty
green red failing affected neighbouring oldest newest smallest regional""".split()

VERB = """raise lower restart drain cordon scale move copy check open close page call
pause resume roll pin clear rotate renew refresh rebuild redeploy drop add remove
split merge lock unlock flush resize replace restore verify compare collect capture
attach detach enable disable inspect notify schedule stop start trim widen shrink""".split()

PREP = "in on for from with under before after near behind during against without".split()

OTHER_KIND = """DiskPressure Evicted CertExpired DNSTimeout VolumeMountFailed
ProbeFailed QuotaExceeded PendingPod HPAStuck ConfigError IngressDown EtcdSlow
JobDeadline SecretMissing PIDPressure NetworkPolicyBlocked InitError CreateError
WebhookTimeout ClockSkew LeaderLost ReplicaLag QueueBacklog SchedulerStuck
EndpointMissing FailedMount FailedScheduling Unhealthy BackoffLimitExceeded
ContainerCannotRun DeadlineExceeded TaintMismatch ImageInspectError""".split()


def part(pool, test):
    """Every fifth word of a pool belongs to the test, the rest to training."""
    return [w for i, w in enumerate(pool) if (i % 5 == 3) == test]
