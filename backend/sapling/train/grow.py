"""Adds a head to each block of a checkpoint, fitted so that it finds where the
name of a pod begins.

    python grow.py OLD.pt NEW.pt SHARPNESS GAIN GAIN_OUT MATCH

In block 1 the new head looks for the first token of the word that a token stands
in (linear probes for "a word begins here", and rotary frequencies that prefer
what is near) and passes that token on. In block 2 it looks, where a verdict asks
for the pod, at tokens inside a pod's name, and writes the passed-on token to the
output. All probes are ridge regressions on the model's own states for generated
alerts. In the other blocks the head starts free and silent.
"""

import copy
import random
import sys

import torch
import torch.nn.functional as F

torch.set_num_threads(1)
import model as M, data
from alerts import alert
torch.manual_seed(5)
ck=torch.load(sys.argv[1],weights_only=False)
c=dict(ck['config']); H,D,dim=c['heads'],64,c['dim']
mk=data.Maker(77,fillers=20); tok=mk.tok
E0=ck['model']['embed']; E=E0-E0.mean(0)
def grow_state(ck):
    s=copy.deepcopy(ck['model']); mu=list(ck['muon'])
    m0=M.Sapling(c); names=[n for n,p in m0.named_parameters() if n.startswith('blocks') and p.dim()==2]
    # order used by the trainer: block by block
    names=[n for i in range(c['layers']) for n,p in m0.named_parameters() if n.startswith(f'blocks.{i}.') and p.dim()==2]
    for i in range(c['layers']):
        for nm in 'qkv':
            k=f'blocks.{i}.{nm}'
            s[k]=torch.cat([s[k],torch.randn(D,dim)*dim**-0.5*(1.0 if nm!='v' else 1.0)])
            j=names.index(k); mu[j]=torch.cat([mu[j],torch.zeros(D,dim)])
        k=f'blocks.{i}.o'; s[k]=torch.cat([s[k],torch.zeros(dim,D)],1)
        j=names.index(k); mu[j]=torch.cat([mu[j],torch.zeros(dim,D)],1)
    return s,mu
s,mu=grow_state(ck)
c2=dict(c,heads=H+1,kv_heads=H+1)
m=M.Sapling(c2,kind=torch.float32); m.load_state_dict(s)
seps=set()
for i in range(1024):
    t=tok.decode([i])
    if t and t[-1] in ' \n/"\'([<`=|': seps.add(i)
def sample(r):
    while True:
        if r.random()<.5:
            row=mk.name_row(); ids=row[0]; at=row[2].index(data.START_POD); pod=ids[at:-1]; ids=ids[:at]
        else:
            a=alert(r); 
            ids=tok.turn("user","Alert: "+a["alert"])+tok.turn("user",data.ASK_VERDICT)+tok.open()+tok.text('{"pod":"'); pod=tok.text(a["pod"])
        for i in range(len(ids)-len(pod)+1):
            if ids[i:i+len(pod)]==pod: return ids,pod,i
r=random.Random(9)
S=[sample(r) for _ in range(400)]
def hidden(m,ids,upto):
    """normed inputs of block upto"""
    pos=torch.arange(len(ids))[None]+200; cos,sin=m.angles(pos)
    x=F.embedding(torch.tensor([ids]),m.embed)
    g=1
    for i,b in enumerate(m.blocks):
        if i==upto: return M.norm(x,b.attn_norm,1e-5,torch.float32)[0]
        q,k,v=b.qkv(x,cos,sin)
        x=b.finish(x,F.scaled_dot_product_attention(q,k,v,is_causal=True))
def ridge(X,Y,l=1e-2):
    A=X.T@X; A+=l*A.diagonal().mean()*torch.eye(len(A)); return torch.linalg.solve(A,X.T@Y)   # dim,n
P=M.frame(D,dim)
with torch.no_grad():
    Y1=[hidden(m,x[0],1) for x in S]
    X=torch.cat(Y1)
    start=[]; 
    for ids,pod,at in S:
        start+= [float(i>0 and ids[i-1] in seps and ids[i] not in seps) for i in range(len(ids))]
    start=torch.tensor(start)
    own=torch.cat([E[torch.tensor(x[0])] for x in S])
    n=len(X)*4//5
    wb=ridge(X[:n],start[:n,None]); wc=ridge(X[:n],torch.ones(n,1)); wv=ridge(X[:n],own[:n]@P.T)
    pb=(X[n:]@wb)[:,0]
    print('start probe: mean at starts %.2f, elsewhere %.2f, acc %.3f; const %.3f +- %.3f; own r2 %.3f'%(pb[start[n:]>0].mean(),pb[start[n:]==0].mean(),((pb>.5)==(start[n:]>.5)).float().mean(),(X[n:]@wc).mean(),(X[n:]@wc).std(),1-((X[n:]@wv-own[n:]@P.T)**2).sum()/((own[n:]@P.T)**2).sum()))
    # recency kernel by non-negative fit
    delta=torch.cat([torch.arange(0,60).float(),torch.arange(60,7000,7).float()]); want=(1-delta/35).clamp(min=0)
    w8=torch.cat([torch.full((60,),3.0),torch.full((len(delta)-60,),0.3)])
    js=list(range(2,26)); B=torch.stack([torch.cos(m.freq[j].float()*delta) for j in js],1)
    Bd=B.double(); Wd=w8.double(); G=(Bd*Wd[:,None]).T@Bd; y=(Bd*Wd[:,None]).T@want.double(); L=torch.linalg.eigvalsh(G)[-1]
    a=torch.zeros(len(js)).double(); z=a.clone(); tt=1.0
    for _ in range(20000):
        an=(z-(G@z-y)/L).clamp(min=0); tn=(1+(1+4*tt*tt)**.5)/2; z=an+(tt-1)/tn*(an-a); a,tt=an,tn
    a=a.float()
    ker=B@a
    print('kernel',[round(ker[i].item(),2) for i in (0,3,6,10,15,20,30,40,59)],'far max %.2f'%ker[60:].max())
    amp=float(sys.argv[3]) if len(sys.argv)>3 else 30.0
    b=m.blocks[1]; half=D//2
    k=torch.zeros(D,dim); q=torch.zeros(D,dim)
    for n_,j in enumerate(js):
        f=(a[n_]*amp*D**0.5).sqrt()
        k[j]=f*wb[:,0]; q[j]=f*wc[:,0]
    b.k.view(H+1,D,dim)[H]=k; b.q.view(H+1,D,dim)[H]=q; b.v.view(H+1,D,dim)[H]=wv.T
    R=M.frame(D,dim)
    # gain: relative to the stream after block 1
    b.o.view(dim,H+1,D)[:,H]=R.T*float(sys.argv[4] if len(sys.argv)>4 else 4.0)
    # block 2
    Y2=[hidden(m,x[0],2) for x in S]; X=torch.cat(Y2)
    st=torch.cat([E[torch.tensor([x[1][0]])].expand(len(x[1]),-1) for x in S])
    rows=[]; lab=[]; ask=[]; o=0
    for ids,pod,at in S:
        rows+=list(range(o+at,o+at+len(pod))); l=torch.zeros(len(ids)); l[at+1:at+len(pod)]=1; lab.append(l); t=torch.zeros(len(ids)); t[-1]=1; ask.append(t); o+=len(ids)
    lab,ask=torch.cat(lab),torch.cat(ask); n=len(X)*4//5
    rows=torch.tensor(rows); tr=rows<n
    wv2=ridge(X[rows[tr]],st[tr]@P.T)
    te=~tr; print('start at later tokens r2 %.3f'%(1-((X[rows[te]]@wv2-st[te]@P.T)**2).sum()/((st[te]@P.T)**2).sum()))
    # nearest token
    sc=(X[rows[te]]@wv2)@(P@E.T); print('nearest token right %.3f'%((sc-0.5*(P@E.T).pow(2).sum(0)).argmax(1)==torch.cat([torch.tensor([x[1][0]]*len(x[1])) for x in S])[te]).float().mean())
    wk=ridge(X[:n],lab[:n,None]); wq=ridge(X[:n],ask[:n,None],1e-3)
    pk=(X[n:]@wk)[:,0]; pq=(X[n:]@wq)[:,0]
    print('pod probe in %.2f out %.2f; ask probe at %.2f elsewhere %.2f'%(pk[lab[n:]>0].mean(),pk[lab[n:]==0].mean(),pq[ask[n:]>0].mean(),pq[ask[n:]==0].abs().mean()))
    b=m.blocks[2]
    slow=[31,30,29]
    k=torch.zeros(D,dim); q=torch.zeros(D,dim)
    for j in slow:
        f=(float(sys.argv[6])*D**0.5/len(slow))**0.5; k[j]=f*wk[:,0]; q[j]=f*wq[:,0]
    b.k.view(H+1,D,dim)[H]=k; b.q.view(H+1,D,dim)[H]=q; b.v.view(H+1,D,dim)[H]=wv2.T
    b.o.view(dim,H+1,D)[:,H]=P.T*float(sys.argv[5] if len(sys.argv)>5 else 1.0)
    for i in (0,3):
        m.blocks[i].o.view(dim,H+1,D)[:,H]=torch.randn(dim,D)*.005
    def acc(m,S):
        ok=0
        for ids,pod,at in S:
            pos=torch.arange(len(ids))[None]+200
            h,_=m.extend(torch.tensor([ids]),pos,None); ok+= m.logits(h[:,-1]).argmax().item()==pod[0]
        return ok/len(S)
    T=[sample(r) for _ in range(150)]
    old=M.Sapling(c,kind=torch.float32); old.load_state_dict(ck['model'])
    print('pod_start before %.3f after %.3f'%(acc(old,T),acc(m,T)), 'embed row norm %.2f'%E.norm(dim=1).mean())
out=dict(ck); out['model']=m.state_dict(); out['muon']=mu; out['config']=c2
torch.save(out,sys.argv[2])
