import sys, tempfile, time, collections
if __name__=="__main__":
    from tests.altered_plans import *
    a,n=int(sys.argv[1]),int(sys.argv[2])
    t=time.time()
    with tempfile.TemporaryDirectory() as f:
        for line in altered_plan_failures(n,f,first=a): print(line)
        for m in BASES: base(m,f)
    print("seconds",time.time()-t)
